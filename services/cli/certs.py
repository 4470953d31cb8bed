"""``octavo certs``: certificates for the services of a stack."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import UNUSABLE, CommandError


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the certificates and their keys.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or IP address that a service is called by, beside its own name in docker-compose.yml; may"
            " be given several times. localhost, 127.0.0.1 and ::1 when absent."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates hold.")] = 90,
    renew: Annotated[
        bool, typer.Option("--renew", help="New certificates from the authority in the folder, which stays.")
    ] = False,
) -> None:
    """Make a certificate authority for development, and a certificate for each service.

    Processes that run take renewed certificates without a restart. With a public key infrastructure of your own, give
    each service a certificate that names its role among its DNS names, such as executor.octavo.internal.
    """
    try:
        from services.certificates import make_certificates, renew_certificates
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "cryptography":
            raise
        raise CommandError("octavo certs needs one more package: pip install 'octavo[certs]'", UNUSABLE) from error

    make = renew_certificates if renew else make_certificates
    make(folder, name or (), days, datetime.now(timezone.utc))
    typer.echo(f"{folder} holds certificates for {days} days")
