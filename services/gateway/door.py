"""Where the tenants are kept that a gateway knows, and whether it may listen where it was told to."""

from __future__ import annotations

import asyncio
import logging

from services.config import ConfigError, GatewayConfig
from services.gateway.admission import Admission
from services.gateway.directory import DirectoryFeed
from services.gateway.identity import Callers
from services.gateway.viewers import Viewers
from services.ports import is_loopback
from services.state.store import StateStore, StateUnavailable
from services.state.tenants_file import tenant_stores

log = logging.getLogger(__name__)


class Door:
    """Who may come in.

    Attributes:
        feed: The tenants.
        callers: Tells whose a call is.
        viewers: Tells who may see what goes on.
        admission: Lets requests in.
    """

    def __init__(self, config: GatewayConfig, store: StateStore) -> None:
        """Opens nothing yet.

        Args:
            store: Where tenants are kept, unless the configuration names a file, and what they use. Is not started yet.
        """
        self._config = config
        self._may_be_open = is_loopback(config.host) or config.insecure or config.trusted_identity
        tenants, usage = tenant_stores(store, config.tenants_file)
        self.feed = DirectoryFeed(tenants, config.namespace_members())
        self.callers = Callers(
            self.feed,
            trusted=config.trusted_identity,
            # Who names a file wants keys, also while nobody has one.
            open_without_tenants=self._may_be_open and config.tenants_file is None,
        )
        self.viewers = Viewers(self.callers, config.operator_key())
        self.admission = Admission(lambda: self.feed.directory, store.limits, usage)

    async def open(self) -> None:
        """Learns of the tenants. A state store that is away is no reason not to start: nobody is let in before.

        Raises:
            ConfigError: The tenants file can't be read, or nobody would be kept out although others than this machine
                can come.
        """
        try:
            await self.feed.refresh()
        except StateUnavailable as error:
            if self._config.tenants_file is not None:
                raise ConfigError(f"tenants_file: {error}") from error
            log.warning("tenants can't be read; nobody is let in until then", extra={"error": str(error)})
            return
        if self.feed.directory.empty and not self._may_be_open:
            raise ConfigError(
                f"host: others can reach {self._config.host}, and there is no tenant yet, so whoever comes would be"
                " served. Add a tenant ('octavo tenant add'), or say --insecure, or --trusted-identity behind a proxy"
                " that says who is calling"
            )
        if not self.feed.directory.empty:
            return
        if self._config.tenants_file is not None:
            log.warning("the tenants file has no tenants: nobody is let in until one is added")
        elif self._config.insecure and not is_loopback(self._config.host):
            log.warning("whoever comes is served: there is no tenant", extra={"host": self._config.host})

    async def run(self) -> None:
        """Follows the tenants and tells what they use, for ever."""
        await asyncio.gather(self.feed.run(), self.admission.run())

    async def close(self) -> None:
        """Tells what was used last."""
        await self.admission.close()
