"""The DBP wire: who is registered, what they and others are told, and when they are thought gone."""
