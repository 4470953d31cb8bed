"""What every gRPC server and client of the system shares: serving, statuses, packed columns, parsing."""
