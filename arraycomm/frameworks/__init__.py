"""What frameworks need beyond DLPack. Nothing here is imported by arraycomm itself."""
