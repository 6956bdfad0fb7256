//! What one measurement chooses from: a target of some release and scheme, with a volume for each way to reach it: by our own client,
//! as a file in FUSE, at an NBD socket, and as ext4 on a mount. All stay attached, for an idle attachment takes no part.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::attachment::{Attachment, AttachmentOptions};
use crate::engine::AttachSettings;
use crate::fio::{FioJob, FioLength, FioVolume};
use crate::ours::FURTHER_BLOCK_BYTES;
use crate::schedule::Watch;
use crate::{BenchError, Contender, Ours, OursOptions, Pattern};

/// Bytes of one write while volumes are filled, and how many are in flight.
pub(super) const FILL_BYTES: u64 = 1 << 20;
pub(super) const FILL_DEPTH: u32 = 4;
/// How much of an ext4 its one file takes: journal, inodes and what is kept free need the rest.
const FILE_SHARE: (u64, u64) = (3, 4);

/// How a program reaches a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all: our own initiator in a process of the lab, without FUSE.
    Client,
    /// As a file in FUSE.
    File,
    /// At the Unix socket of an NBD server.
    Nbd,
    /// As a file in ext4, mounted by `--mount`.
    Ext4,
}

impl Way {
    /// As on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Way::Client => "client",
            Way::File => "file",
            Way::Nbd => "nbd",
            Way::Ext4 => "ext4",
        }
    }
}

impl FromStr for Way {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Way, BenchError> {
        let found = [Way::File, Way::Nbd, Way::Ext4].into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| {
            BenchError::Asked(format!(
                "a program cannot reach a volume by '{text}'; choose from file, nbd and ext4 (our own client is measured beside file and nbd)"
            ))
        })
    }
}

/// Arguments of `attach`, and what results call them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachArguments {
    /// The name; empty for none.
    pub name: String,
    /// The arguments.
    pub arguments: Vec<String>,
}

impl FromStr for AttachArguments {
    type Err = BenchError;

    /// `NAME=ARGUMENTS`, separated by blanks.
    fn from_str(text: &str) -> Result<AttachArguments, BenchError> {
        match text.split_once('=') {
            Some((name, arguments)) if !name.is_empty() && !name.contains([' ', '-']) => Ok(AttachArguments {
                name: name.to_owned(),
                arguments: arguments.split_ascii_whitespace().map(str::to_owned).collect(),
            }),
            _ => Err(BenchError::Asked(format!(
                "'{text}' does not say what these arguments are called; write NAME=ARGUMENTS, as 'two=--connections 2'"
            ))),
        }
    }
}

/// How to start one.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The target; its own volume is the client's.
    pub target: OursOptions,
    /// The release that serves and attaches; empty if there is only one.
    pub release: String,
    /// One attachment for each of these.
    pub attached_with: Vec<AttachArguments>,
    /// By which ways: [`Way::File`] and [`Way::Nbd`], with the client beside them, and [`Way::Ext4`].
    pub ways: Vec<Way>,
    /// Bytes of each volume with ext4.
    pub ext4_bytes: u64,
    /// How often volumes are written before the first measurement.
    pub fills: u32,
    /// How both ends poll; as usual if none is given.
    pub busy_poll: Option<String>,
}

/// See the module. Fields in the order in which they have to go.
#[derive(Debug)]
pub struct ServedVolumes {
    attached: Vec<AttachedVolumes>,
    pub(super) ours: Ours,
    pub(super) release: String,
    /// Bytes of the volumes that hold no file system.
    volume_bytes: u64,
}

/// The volumes that were attached with the same arguments.
#[derive(Debug)]
struct AttachedVolumes {
    name: String,
    file: Option<Attachment>,
    nbd: Option<Attachment>,
    ext4: Option<Attachment>,
}

impl ServedVolumes {
    /// Starts the target, attaches its volumes, and fills them.
    ///
    /// # Errors
    /// If any of it fails, with what was said; [`BenchError::Stopped`].
    pub fn start(options: ServeOptions, watch: &dyn Watch) -> Result<ServedVolumes, BenchError> {
        let ServeOptions { mut target, release, attached_with, ways, ext4_bytes, fills, busy_poll } = options;
        let (directory, placement) = (target.directory.clone(), target.placement.clone());
        for at in 0..attached_with.len() {
            for way in &ways {
                let bytes = if *way == Way::Ext4 { ext4_bytes } else { target.volume_bytes };
                target.further_volumes.push((volume_name(*way, at), bytes));
            }
        }
        if let Some(busy_poll) = &busy_poll {
            target.serve_args.extend(["--busy-poll".into(), busy_poll.clone()]);
        }
        let volume_bytes = target.volume_bytes;
        let mut ours = Ours::start(target)?.with_fills(fills);
        if let Some(busy_poll) = &busy_poll {
            ours = ours.with_busy_poll(busy_poll);
        }
        let mut served = ServedVolumes { attached: Vec::new(), ours, release, volume_bytes };
        for (at, AttachArguments { name, arguments }) in attached_with.into_iter().enumerate() {
            served.attached.push(AttachedVolumes { name, file: None, nbd: None, ext4: None });
            for way in &ways {
                let volume = volume_name(*way, at);
                let own = directory.join(&volume);
                fs::create_dir_all(&own).map_err(|error| BenchError::file(&own, error))?;
                let options = AttachmentOptions {
                    product: served.ours.product(),
                    settings: with_own_key_file(served.ours.attach_settings_of(&volume), &own)?,
                    arguments: arguments.clone(),
                    directory: own,
                    cpus: placement.initiators.clone(),
                };
                let new = &mut served.attached[at];
                match way {
                    Way::Client => {}
                    Way::File => new.file = Some(Attachment::file(options)?),
                    Way::Nbd => new.nbd = Some(Attachment::nbd(options)?),
                    Way::Ext4 => new.ext4 = Some(Attachment::ext4(options)?),
                }
                (0..fills).try_for_each(|_| served.fill(*way, at, watch))?;
            }
        }
        Ok(served)
    }

    /// Names of the arguments with which there are attachments.
    pub(super) fn attached_with(&self, at: usize) -> &str {
        &self.attached[at].name
    }

    /// How many there are.
    pub(super) fn attachments(&self) -> usize {
        self.attached.len()
    }

    /// An attachment.
    pub(super) fn attachment(&mut self, way: Way, at: usize) -> Result<&mut Attachment, BenchError> {
        let attached = &mut self.attached[at];
        let found = match way {
            Way::Client => None,
            Way::File => attached.file.as_mut(),
            Way::Nbd => attached.nbd.as_mut(),
            Way::Ext4 => attached.ext4.as_mut(),
        };
        let found = found.ok_or_else(|| BenchError::Asked(format!("nothing was attached as {}", way.name())))?;
        found.check_alive()?;
        Ok(found)
    }

    /// What a program uses, and how many of its bytes.
    pub(super) fn program_volume(&mut self, way: Way, at: usize) -> Result<(FioVolume, u64), BenchError> {
        let volume_bytes = self.volume_bytes;
        let attachment = self.attachment(way, at)?;
        let path = attachment.path().to_owned();
        match way {
            Way::Nbd => Ok((FioVolume::Nbd { socket: path }, volume_bytes)),
            Way::Client | Way::File | Way::Ext4 => {
                let bytes = fs::metadata(&path).map_err(|error| BenchError::file(&path, error))?.len();
                if way != Way::Ext4 {
                    return Ok((FioVolume::File(path), bytes));
                }
                let bytes = bytes / FILE_SHARE.1 * FILE_SHARE.0 / FILL_BYTES * FILL_BYTES;
                Ok((FioVolume::File(attachment.mounted_path().join("program.data")), bytes))
            }
        }
    }

    /// Writes every byte of what a program uses once.
    fn fill(&mut self, way: Way, at: usize, watch: &dyn Watch) -> Result<(), BenchError> {
        let (volume, volume_bytes) = self.program_volume(way, at)?;
        let job = FioJob {
            volume,
            volume_bytes,
            pattern: Pattern::SeqWrite,
            size: FILL_BYTES,
            depth: FILL_DEPTH,
            is_direct: way != Way::Ext4,
            length: FioLength::WholeFile,
            seed: 0,
        };
        let attachment = self.attachment(way, at)?;
        job.start(&[], attachment.directory())?.finish(watch).map(drop)
    }

    /// The target's processes.
    pub(super) fn target_pids(&self) -> Vec<u32> {
        self.ours.target_pids()
    }

    /// What channel and blocks are protected with.
    pub(super) fn suite(&self) -> String {
        self.ours.attach_settings(FURTHER_BLOCK_BYTES).channel.suite.unwrap_or_else(|| "none".into())
    }
}

/// The same with a copy of the key file in `directory`: a key file records the volumes that the product formats with it, and then takes no
/// others; our own client formats its volume without that.
pub(super) fn with_own_key_file(mut settings: AttachSettings, directory: &Path) -> Result<AttachSettings, BenchError> {
    if let Some(path) = &mut settings.sealing.key_file {
        let copy = directory.join("volume.key");
        fs::copy(&*path, &copy).map_err(|error| BenchError::file(&copy, error))?;
        *path = copy;
    }
    Ok(settings)
}

/// The volume that is attached one way with the `at`th arguments.
fn volume_name(way: Way, at: usize) -> String {
    format!("{}-{at}", way.name())
}
