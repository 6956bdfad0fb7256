//! What is asked of the target, over its admin socket and nothing else: one question at a time, and answers are kept for a moment, so that
//! many pages cost the target no more than one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_target::admin::{
    AdminError, Client, Description, Operation, PROTOCOL, Reply, Request, StatusReport, VolumeEntry,
};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use crate::history::History;

/// For the target's answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// For earlier questions and the answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A status report is shown for so long.
const STATUS_FRESH_FOR: Duration = Duration::from_millis(900);
/// The list of volumes: each is a file that the target reads.
const LISTING_FRESH_FOR: Duration = Duration::from_secs(5);
/// What a store has in it: the target counts what snapshots alone keep.
const DESCRIPTION_FRESH_FOR: Duration = Duration::from_secs(10);
/// Descriptions that are kept.
const DESCRIPTIONS_MAX: usize = 16;
/// How long the target is still asked after a page was last viewed.
const WATCHED_FOR: Duration = Duration::from_secs(20);

/// Why the target did not answer as hoped.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum TargetProblem {
    /// Nobody listens.
    #[error("No target answers at {}.", .0.display())]
    NotRunning(PathBuf),
    /// It speaks another version of the protocol.
    #[error(
        "The target speaks version {0} of the admin protocol, and this console version {PROTOCOL}. Use programs of one version."
    )]
    OtherVersion(u32),
    /// It did not do it.
    #[error("{0}")]
    Refused(String),
    /// The conversation failed.
    #[error("{0}")]
    Broken(String),
    /// It took too long.
    #[error("The target has not answered in time. It is busy, or a worker of it is stuck; look into its log.")]
    Slow,
}

impl From<AdminError> for TargetProblem {
    fn from(error: AdminError) -> TargetProblem {
        match error {
            AdminError::Refused(why) => TargetProblem::Refused(why),
            other => TargetProblem::Broken(other.to_string()),
        }
    }
}

/// The target that is looked at.
pub(crate) struct Target {
    socket: PathBuf,
    /// Whose turn it is to ask.
    turn: Arc<AsyncMutex<()>>,
    seen: Mutex<Seen>,
}

/// What it has answered.
#[derive(Default)]
struct Seen {
    history: History,
    status_at: Option<Instant>,
    listing: Option<(Instant, Arc<Vec<VolumeEntry>>)>,
    descriptions: BTreeMap<String, (Instant, Arc<Description>)>,
    wanted: Option<Instant>,
}

/// An answer that is still good.
fn fresh<T: Clone>(kept: Option<&(Instant, T)>, for_: Duration) -> Option<T> {
    kept.filter(|(at, _)| at.elapsed() < for_).map(|(_, answer)| answer.clone())
}

impl Target {
    pub(crate) fn new(socket: PathBuf) -> Target {
        Target { socket, turn: Arc::default(), seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks. What changes something makes kept answers old.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, TargetProblem> {
        let changes = !matches!(
            request,
            Request::Status
                | Request::Volumes { .. }
                | Request::Peers
                | Request::Invitations
                | Request::Volume { operation: Operation::Describe, .. }
        );
        let answer = timeout(PATIENCE, self.ask_in_turn(request)).await;
        if changes {
            let mut seen = self.seen();
            (seen.status_at, seen.listing) = (None, None);
        }
        answer.unwrap_or(Err(TargetProblem::Slow))
    }

    async fn ask_in_turn(&self, request: Request) -> Result<Reply, TargetProblem> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let socket = self.socket.clone();
        // The turn ends with the question, also if nobody waits for the answer any more.
        let question = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let client = Client::connect(&socket)?;
            let mut client = client.ok_or(TargetProblem::NotRunning(socket))?;
            Ok(client.ask(&request, ANSWER_PATIENCE)?)
        });
        question.await.unwrap_or(Err(TargetProblem::Slow))
    }

    /// How the target is, with what was seen before.
    pub(crate) async fn history(&self) -> Result<History, TargetProblem> {
        self.seen().wanted = Some(Instant::now());
        self.look().await?;
        Ok(self.seen().history.clone())
    }

    /// Asks for the status, if the last one is old.
    async fn look(&self) -> Result<(), TargetProblem> {
        if self.seen().status_at.is_some_and(|at| at.elapsed() < STATUS_FRESH_FOR) {
            return Ok(());
        }
        let answer = match self.ask(Request::Status).await? {
            Reply::Status(report) if report.protocol == PROTOCOL => Ok(report),
            Reply::Status(report) => Err(TargetProblem::OtherVersion(report.protocol)),
            _ => Err(other_answer()),
        };
        let report: Box<StatusReport> = answer?;
        let mut seen = self.seen();
        seen.history.push(Arc::new(*report));
        seen.status_at = Some(Instant::now());
        Ok(())
    }

    /// While pages are looked at, keeps their rates going.
    pub(crate) async fn sample(&self) {
        let wanted = self.seen().wanted.is_some_and(|at| at.elapsed() < WATCHED_FOR);
        match wanted {
            true => drop(self.look().await),
            // Memory is for what is looked at.
            false => *self.seen() = Seen::default(),
        }
    }

    /// Every volume of the catalogue.
    pub(crate) async fn volumes(&self) -> Result<Arc<Vec<VolumeEntry>>, TargetProblem> {
        if let Some(listing) = fresh(self.seen().listing.as_ref(), LISTING_FRESH_FOR) {
            return Ok(listing);
        }
        let Reply::Volumes(volumes) = self.ask(Request::Volumes { volume: None }).await? else {
            return Err(other_answer());
        };
        let volumes = Arc::new(volumes);
        self.seen().listing = Some((Instant::now(), Arc::clone(&volumes)));
        Ok(volumes)
    }

    /// What the store of a volume has in it. Only of one that is open: looking must not open it.
    pub(crate) async fn describe(&self, volume: &str) -> Result<Arc<Description>, TargetProblem> {
        if let Some(description) = fresh(self.seen().descriptions.get(volume), DESCRIPTION_FRESH_FOR) {
            return Ok(description);
        }
        let request = Request::Volume { volume: volume.to_owned(), operation: Operation::Describe };
        let Reply::Volume(description) = self.ask(request).await? else { return Err(other_answer()) };
        let description = Arc::new(*description);
        let mut seen = self.seen();
        if seen.descriptions.len() >= DESCRIPTIONS_MAX {
            seen.descriptions.clear();
        }
        seen.descriptions.insert(volume.to_owned(), (Instant::now(), Arc::clone(&description)));
        Ok(description)
    }
}

/// The error for a reply of the wrong kind.
pub(crate) fn other_answer() -> TargetProblem {
    TargetProblem::Broken(
        "The target answered something else than was asked. It is of another version; restart it.".to_owned(),
    )
}
