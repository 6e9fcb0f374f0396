"""What a user solves, named by shape: loss and metric around a head."""
