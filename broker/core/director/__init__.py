"""The Elko Director's meaning: which Context Server a user is sent to, and who must hear of contexts and users."""
