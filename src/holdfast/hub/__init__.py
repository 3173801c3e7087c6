"""The async shell around the decisions of core/ and the connections of wire/."""
