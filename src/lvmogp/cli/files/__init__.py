"""Tables in files of users: how they are written, what is in them, what each column is for."""
