//! Tells a service manager that the process is ready, stopping or alive (the `sd_notify` protocol), if one asked to be told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Sends `state`, such as `READY=1`, to the socket that `NOTIFY_SOCKET` names; returns whether there is one. Failures are only logged.
pub(crate) fn notify(state: &str) -> bool {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return false };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell the service manager: {state}");
    }
    true
}

/// The watchdog of a service manager (`WatchdogSec=`): it restarts a process that does not say often enough that it works.
pub(crate) struct Watchdog {
    /// `None`: nobody asked.
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    /// As `WATCHDOG_USEC` says, for this process.
    pub(crate) fn from_environment() -> Watchdog {
        let variable = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let timeout = variable("WATCHDOG_USEC").filter(|usec| *usec > 0 && is_ours).map(Duration::from_micros);
        // Twice in the time that it has, as sd_watchdog_enabled(3) recommends; a probe may take half of what is left.
        Watchdog { every: timeout.map(|timeout| timeout / 4), next: Instant::now() }
    }

    /// How long the caller may wait until the next call of [`Watchdog::notify`], of `wait`.
    pub(crate) fn limit(&self, wait: Duration) -> Duration {
        self.every.map_or(wait, |every| wait.min(every))
    }

    /// Says that the process works, if that is due and `works` says so, which may take as long as its argument.
    pub(crate) fn notify(&mut self, works: impl FnOnce(Duration) -> bool) {
        let Some(every) = self.every else { return };
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + every;
        if works(every) {
            notify("WATCHDOG=1");
        } else {
            tracing::error!(
                "a thread does not answer; the service manager's watchdog is not told that the process works"
            );
        }
    }
}
