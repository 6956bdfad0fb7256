//! The target as its operator asks it: a connection for each request of the orchestrator, over the protocol of `docs/operators.md`.
//!
//! Absent: what is asked for. Nothing is remembered between two requests: what there is, the target says.

use std::time::Duration;

use strongroom_target::admin::{Description, Operation, Reply, Request, VolumeEntry, VolumeInfo};
use strongroom_target::operators::{OperatorClient, OperatorDestination};
use tonic::{Code, Status};

use crate::error::{of_target, unexpected};

/// How long a target may take: it may have to open a large volume first.
const PATIENCE: Duration = Duration::from_secs(300);
/// A name that no volume of a driver has; asking for it costs the target nothing.
const NO_VOLUME: &str = "0";

/// A connection to the target.
pub(crate) struct Conversation(OperatorClient);

impl Conversation {
    /// Connects.
    ///
    /// # Errors
    /// Why it could not, as a status.
    pub(crate) fn begin(to: &OperatorDestination) -> Result<Conversation, Status> {
        OperatorClient::connect(to).map(Conversation).map_err(|error| of_target(&error))
    }

    /// Asks for one thing.
    ///
    /// # Errors
    /// Why it was not done, as a status.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply, Status> {
        self.0.ask(request, PATIENCE).map_err(|error| of_target(&error))
    }

    /// Asks for what is answered by a word.
    ///
    /// # Errors
    /// Those of [`Conversation::ask`].
    pub(crate) fn operate(&mut self, volume: &str, operation: Operation) -> Result<Description, Status> {
        match self.ask(&Request::Volume { volume: volume.to_owned(), operation })? {
            Reply::Volume(description) => Ok(*description),
            _ => Err(unexpected()),
        }
    }

    /// All volumes that can be used, by name.
    ///
    /// # Errors
    /// Those of [`Conversation::ask`].
    pub(crate) fn volumes(&mut self) -> Result<Vec<VolumeInfo>, Status> {
        let Reply::Volumes(entries) = self.ask(&Request::Volumes { volume: None })? else { return Err(unexpected()) };
        let mut volumes: Vec<VolumeInfo> = entries
            .into_iter()
            .filter_map(|entry| match entry {
                VolumeEntry::Good(info) => Some(*info),
                VolumeEntry::Damaged { name, .. } => {
                    tracing::warn!(volume = name, "the target cannot read the description of a volume; see its log");
                    None
                }
            })
            .collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    /// One volume, if there is one of that name.
    ///
    /// # Errors
    /// Those of [`Conversation::ask`].
    pub(crate) fn find(&mut self, volume: &str) -> Result<Option<VolumeInfo>, Status> {
        match self.ask(&Request::Volumes { volume: Some(volume.to_owned()) }) {
            Ok(Reply::Volumes(mut entries)) => match entries.pop() {
                Some(VolumeEntry::Good(info)) => Ok(Some(*info)),
                Some(VolumeEntry::Damaged { error, .. }) => Err(crate::error::of_program("the target", &error)),
                None => Err(unexpected()),
            },
            Ok(_) => Err(unexpected()),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// One volume.
    ///
    /// # Errors
    /// `NOT_FOUND`; those of [`Conversation::ask`].
    pub(crate) fn volume(&mut self, volume: &str) -> Result<VolumeInfo, Status> {
        self.find(volume)?.ok_or_else(|| Status::not_found(format!("there is no volume '{volume}' at the target")))
    }

    /// Whether the target does what we ask for.
    ///
    /// # Errors
    /// Those of [`Conversation::ask`].
    pub(crate) fn probe(&mut self) -> Result<(), Status> {
        self.find(NO_VOLUME).map(drop)
    }
}
