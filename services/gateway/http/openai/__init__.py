"""OpenAI's API, with vLLM's additions and Octavo's own: as thin as its shapes allow."""
