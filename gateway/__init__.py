"""The gateway core: prompts become token ids, token ids become text, and requests are checked on the way in."""
