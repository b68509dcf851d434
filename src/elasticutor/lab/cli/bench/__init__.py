"""`elasticutor bench …`: a command per benchmark."""
