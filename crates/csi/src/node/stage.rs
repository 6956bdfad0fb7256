//! Staging: prepares a volume with its key, attaches it, and mounts its file system at the staging path, or has it as a block device. And back.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use strongroom_target::names::VolumeName;
use tonic::{Code, Status};

use super::{NodeHost, is_same_place};
use crate::capabilities::{AccessKind, AccessMode, VolumeUse};
use crate::error::of_system;
use crate::mounts;
use crate::parameters::{KeyCustody, VolumeContext};
use crate::program::{Arguments, AttachmentEntry, EntryState};
use crate::secrets::{KEY_FILE, KEY_SERVER_IDENTITY, SecretFile, Secrets};
use crate::spec;

/// A volume to be staged.
pub(super) struct Staging {
    path: PathBuf,
    wanted: VolumeUse,
    context: VolumeContext,
}

/// The files with secrets that commands are given, while they run.
struct KeyFiles {
    custody: KeyCustody,
    key_file: Option<SecretFile>,
    key_server_identity: Option<SecretFile>,
}

impl KeyFiles {
    fn of(host: &NodeHost, context: &VolumeContext, secrets: &Secrets) -> Result<KeyFiles, Status> {
        let mut files = KeyFiles { custody: context.custody, key_file: None, key_server_identity: None };
        match context.custody {
            KeyCustody::KeyFile => {
                let file = secrets.file(KEY_FILE, &host.secrets)?;
                files.key_file = Some(file.ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "the volume is sealed, and there is no secret with an entry '{KEY_FILE}'; name one in the class by \
                         csi.storage.k8s.io/node-stage-secret-name"
                    ))
                })?);
            }
            KeyCustody::KeyServer if host.program.key_server.is_empty() => {
                return Err(Status::failed_precondition(
                    "the volume's key is at a key server, and this node was not told which; start the driver with --key-server",
                ));
            }
            KeyCustody::KeyServer => files.key_server_identity = secrets.file(KEY_SERVER_IDENTITY, &host.secrets)?,
            KeyCustody::Plain => {}
        }
        Ok(files)
    }

    fn is_sealed(&self) -> bool {
        self.custody != KeyCustody::Plain
    }

    fn tell(&self, host: &NodeHost, arguments: &mut Arguments) {
        if let Some(file) = &self.key_file {
            arguments.option("key-file", file.path());
        }
        if self.custody == KeyCustody::KeyServer {
            host.program.key_server.iter().for_each(|argument| arguments.push(argument));
        }
        if let Some(file) = &self.key_server_identity {
            arguments.option("key-server-identity", file.path());
        }
    }
}

impl Staging {
    pub(super) fn of(request: &spec::NodeStageVolumeRequest) -> Result<Staging, Status> {
        Ok(Staging {
            path: mounts::checked_path(&request.staging_target_path, "staging_target_path")?,
            wanted: VolumeUse::of(request.volume_capability.as_ref())?,
            context: VolumeContext::parse(&request.volume_context)?,
        })
    }

    pub(super) fn run(
        &self,
        host: &NodeHost,
        volume: &VolumeName,
        secrets: &Secrets,
    ) -> Result<spec::NodeStageVolumeResponse, Status> {
        let directory = host.directory_of(volume);
        match host.attachment(volume)? {
            Some(entry) if entry.state == EntryState::Serving => {
                return match self.is_served_by(&entry) {
                    true => Ok(spec::NodeStageVolumeResponse {}),
                    false => Err(Status::already_exists(format!(
                        "'{volume}' is staged on this node already, elsewhere or for another use; unstage it first"
                    ))),
                };
            }
            // What its process has left is in the way. What was lost with it is told, and no reason not to go on.
            Some(_) => match host.program.detach(&directory) {
                Err(status) if status.code() == Code::DataLoss => {
                    tracing::error!(%volume, reason = status.message(), "writes were lost when the volume was last attached");
                }
                cleaned => cleaned?,
            },
            None => {}
        }
        let keys = KeyFiles::of(host, &self.context, secrets)?;
        self.prepare(host, volume, &keys)?;
        make_private(&directory)?;
        make_private(host.log_of(volume).parent().unwrap_or(Path::new("/")))?;
        let unit = format!("strongroom-csi-{volume}");
        host.program.attach(self.attach_arguments(host, volume, &keys), &unit, &host.log_of(volume))?;
        Ok(spec::NodeStageVolumeResponse {})
    }

    fn is_served_by(&self, entry: &AttachmentEntry) -> bool {
        match (&self.wanted.access, &entry.mount) {
            (AccessKind::Block, None) => entry.device.is_some(),
            (AccessKind::FileSystem { .. }, Some(mount)) => is_same_place(mount, &self.path),
            _ => false,
        }
    }

    /// With its key: formats it where it is new, and seals what it has grown by.
    fn prepare(&self, host: &NodeHost, volume: &VolumeName, keys: &KeyFiles) -> Result<(), Status> {
        if !keys.is_sealed() {
            return Ok(());
        }
        let name = self.context.sealed_as.as_deref().unwrap_or(volume.as_str());
        let lent = (&self.context.domain, &self.context.id);
        if let (KeyCustody::KeyServer, (Some(domain), Some(id)), None) = (keys.custody, lent, &self.context.sealed_as) {
            let mut arguments = Arguments::default();
            arguments.option("domain", domain);
            arguments.option("id", id);
            host.program.identity.iter().for_each(|argument| arguments.push(argument));
            keys.tell(host, &mut arguments);
            arguments.name(name);
            host.program.create_key(arguments)?;
        }
        let mut arguments = self.command_arguments(host, keys);
        if self.context.sealed_as.is_some() {
            arguments.option("sealed-as", name);
        }
        if self.wanted.mode.is_read_only() {
            arguments.flag("--read-only");
        }
        arguments.name(&host.url_of(volume));
        host.program.prepare(arguments)
    }

    /// What every command with a URL is told.
    fn command_arguments(&self, host: &NodeHost, keys: &KeyFiles) -> Arguments {
        let mut arguments = Arguments::default();
        let program = &host.program;
        program.identity.iter().chain(&program.target_keys).for_each(|argument| arguments.push(argument));
        keys.tell(host, &mut arguments);
        if let (KeyCustody::KeyServer, Some(name)) = (keys.custody, &self.context.sealed_as) {
            arguments.option("key-name", name);
        }
        arguments
    }

    fn attach_arguments(&self, host: &NodeHost, volume: &VolumeName, keys: &KeyFiles) -> Arguments {
        let mut arguments = self.command_arguments(host, keys);
        arguments.option("to", host.directory_of(volume));
        let is_read_only = self.wanted.mode.is_read_only();
        match &self.wanted.access {
            AccessKind::Block => arguments.flag("--block-device"),
            AccessKind::FileSystem { file_system, options } => {
                arguments.option("mount", &self.path);
                if !is_read_only {
                    arguments.option("mkfs-if-blank", file_system);
                }
                // A clone has its source's UUID, and both may be mounted here.
                let of_xfs = (*file_system == "xfs").then_some("nouuid");
                let all: Vec<&str> = options.iter().map(String::as_str).chain(of_xfs).collect();
                if !all.is_empty() {
                    arguments.option("mount-options", all.join(","));
                }
            }
        }
        match self.wanted.mode {
            AccessMode::ReadOnly { .. } => arguments.flag("--read-only"),
            AccessMode::SharedWriters => arguments.flag("--shared"),
            AccessMode::SingleNode | AccessMode::SingleWriter if keys.is_sealed() => {
                arguments.flag("--seal-growth");
            }
            AccessMode::SingleNode | AccessMode::SingleWriter => {}
        }
        // Not behind `--`: the command adds an option to them when it starts itself once more.
        arguments.flag(&host.url_of(volume));
        arguments
    }
}

fn make_private(directory: &Path) -> Result<(), Status> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    match made {
        // What a process has left that has died cannot be looked into.
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::NOTCONN.raw_os_error()) => {
            Err(of_system("make a directory for the volume", error))
        }
        _ => Ok(()),
    }
}

/// Ends what [`Staging::run`] has made.
pub(super) fn end(
    host: &NodeHost,
    volume: &VolumeName,
    staging: &Path,
) -> Result<spec::NodeUnstageVolumeResponse, Status> {
    let directory = host.directory_of(volume);
    let detached = match host.attachment(volume)? {
        Some(_) => host.program.detach(&directory),
        None => Ok(()),
    };
    match detached {
        Err(status) if status.code() != Code::DataLoss => return Err(status),
        _ => {}
    }
    // A mount that its attachment's process has left, by a crash of the machine's services for instance.
    if mounts::on(staging)?.is_some_and(|mount| mount.source.starts_with("/dev/loop")) {
        mounts::undo(staging)?;
    }
    let _ = fs::remove_dir(&directory);
    let _ = fs::remove_file(host.log_of(volume));
    detached.map(|()| spec::NodeUnstageVolumeResponse {})
}
