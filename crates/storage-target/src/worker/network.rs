//! The runtime of a worker with the portals that it listens at.

use std::time::{Duration, Instant};

use strongroom_net::{Listener, ListenerId, NetError, PollCounters, Runtime, RuntimeOptions, UdpSocket, Waker};

use super::datagrams::Datagrams;
use crate::config::Portal;
use crate::polling::PollCounts;

/// Bound sockets at every portal, for one worker.
pub(crate) struct PortalSockets {
    pub(crate) listeners: Vec<Listener>,
    /// None where ECL is off.
    pub(crate) datagrams: Vec<UdpSocket>,
}

/// How long streams may take to send their last bytes when the target stops.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Network {
    pub(super) runtime: Runtime,
    pub(super) datagrams: Datagrams,
    listeners: Vec<(ListenerId, Portal)>,
    /// What busy polling came to when it was last asked.
    polls: PollCounters,
}

impl Network {
    pub(super) fn new(
        options: RuntimeOptions,
        waker: Waker,
        sockets: PortalSockets,
        (portals, worker): (&[Portal], (usize, usize)),
    ) -> Result<Network, NetError> {
        let mut runtime = Runtime::with_waker(options, waker)?;
        let datagrams = Datagrams::new(&mut runtime, worker, sockets.datagrams)?;
        let listeners = sockets
            .listeners
            .into_iter()
            .zip(portals)
            .map(|(listener, portal)| Ok((runtime.listen(listener)?, *portal)))
            .collect::<Result<Vec<_>, NetError>>()?;
        Ok(Network { runtime, datagrams, listeners, polls: PollCounters::default() })
    }

    /// For how long the runtime looked for work since the last call; publishes what came of it.
    pub(super) fn looked(&mut self, counts: &PollCounts) -> Duration {
        let before = std::mem::replace(&mut self.polls, self.runtime.counters().busy_poll);
        if self.polls != before {
            counts.set(&self.polls);
        }
        self.polls.spent - before.spent
    }

    /// The portal of a listener. Connections are accepted only while it listens.
    pub(super) fn portal(&self, listener: ListenerId) -> Portal {
        let found = self.listeners.iter().find(|(id, _)| *id == listener);
        found.expect("only stopping removes listeners, and then no connection is accepted").1
    }

    pub(super) fn stop_listening(&mut self) {
        for (listener, _) in self.listeners.drain(..) {
            self.runtime.stop_listening(listener);
        }
    }

    /// Lets every stream send its last bytes.
    pub(super) fn drain(&mut self) {
        self.datagrams.stop(&mut self.runtime);
        let until = Instant::now() + DRAIN_PATIENCE;
        while self.runtime.streams_count() > 0 && Instant::now() < until {
            if self.runtime.poll(Some(Duration::from_millis(20))).is_err() {
                return;
            }
            while self.runtime.next_event().is_some() {}
        }
    }
}
