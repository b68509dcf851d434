"""`python -m elasticutor` is `elasticutor`."""

from elasticutor.cli import main

if __name__ == "__main__":
    main()
