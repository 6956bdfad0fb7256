//! `strongroom vhost-user serve`: a volume as the disk of a virtual machine, until it is told to end.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, digest};
use clap::{Args, Subcommand};
use strongroom_initiator::front::vhost::{VhostOptions, VhostServer};
use strongroom_initiator::safety::Memory;
use strongroom_initiator::{RemoteDevice, UnitDescription, VolumeUrl};

use super::detach::DATA_LOST;
use crate::attachment_process::{FrontEnd, NotEnded, ServingArgs, VolumeUse};
use crate::attachments::AttachmentPlace;
use crate::metrics::attachment::ClientCounter;
use crate::runtime_dir::RuntimeDir;

/// What a guest's serial number has room for.
const SERIAL_LEN: usize = 20;

/// Serve a volume to virtual machines: qemu, cloud-hypervisor.
#[derive(Subcommand)]
pub(crate) enum VhostUserCommand {
    Serve(Box<VhostUserServeArgs>),
}

/// Serve a volume as a vhost-user-blk device at a socket, until SIGTERM or `strongroom detach`.
///
/// The virtual machine's memory has to be shared. The exit status is 0 if everything that was written is at the target, and 3 if some of it
/// is not.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom vhost-user serve strongroom://storage/vault --key-file ~/vault.key --socket /run/vault.sock\n  \
    qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=memory,size=2G,share=on -machine q35,memory-backend=memory \
    -chardev socket,id=vault,path=/run/vault.sock,reconnect-ms=500 -device vhost-user-blk-pci,chardev=vault ...\n  \
    cloud-hypervisor --memory size=2G,shared=on --disk vhost_user=true,socket=/run/vault.sock ...\n  \
    strongroom detach /run/vault.sock")]
pub(crate) struct VhostUserServeArgs {
    /// The volume: as for `strongroom attach`.
    url: VolumeUrl,
    /// Listen at this Unix socket, which only this user can use [default: VOLUME.vhost-user in the directory for attachments].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Queues that a virtual machine may use; one for each of its processors is enough.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: u16,
    /// Entries that a queue may have: a power of two.
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = queue_size)]
    queue_size: u16,
    /// The logical block size that the virtual machine sees: 512 for firmware and disk images that know no other one. Writes that are no
    /// whole blocks of the volume are slow [default: the volume's block size, at most 4096].
    #[arg(long, value_name = "BYTES", value_parser = logical_block_size)]
    logical_block_size: Option<u32>,
    #[command(flatten)]
    serving: ServingArgs,
}

fn queue_size(text: &str) -> Result<u16, String> {
    let size = text.parse().ok().filter(|size: &u16| size.is_power_of_two() && (2..=1024).contains(size));
    size.ok_or_else(|| "a power of two from 2 to 1024".to_owned())
}

fn logical_block_size(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size: &u32| size.is_power_of_two() && (512..=4096).contains(size));
    size.ok_or_else(|| "512, 1024, 2048 or 4096".to_owned())
}

/// Runs the command.
pub(crate) fn run(command: VhostUserCommand) -> Result<ExitCode> {
    let VhostUserCommand::Serve(args) = command;
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => RuntimeDir::open()?.path_of(&format!("{}.vhost-user", args.url.file_name())),
    };
    let volume = VolumeUse {
        url: &args.url,
        purpose: format!("vhost-user serve, at {}", path.display()),
        is_mounted_here: false,
        memory: Memory::Locked,
        log: None,
        name: None,
    };
    let lost = args.serving.serve(&volume, |device| args.start(device, &path))?;
    match lost {
        None => Ok(ExitCode::SUCCESS),
        Some(losses) => {
            eprintln!("strongroom: {} is detached, but {losses}", args.url.route());
            Ok(ExitCode::from(DATA_LOST))
        }
    }
}

impl VhostUserServeArgs {
    fn start(&self, device: Arc<RemoteDevice>, path: &Path) -> Result<VhostUserFrontEnd> {
        let mut options = VhostOptions::new(serial(device.unit()));
        options.read_only = self.serving.is_read_only(&self.url);
        options.queues_max = self.queues;
        options.queue_size_max = self.queue_size;
        options.logical_block_bytes = self.logical_block_size;
        let server = VhostServer::start(device, path, options).context("cannot serve the volume over vhost-user")?;
        Ok(VhostUserFrontEnd(server))
    }
}

/// The same for a volume at every attachment, and another one for its snapshots and clones.
fn serial(unit: &UnitDescription) -> String {
    let volume_id = unit.sealed.map(|sealed| sealed.claims.volume_id.to_string()).unwrap_or_default();
    let identity = format!("{volume_id} {} {}", unit.target_name, unit.lun);
    let digest = digest(&SHA256, identity.as_bytes());
    digest.as_ref()[..SERIAL_LEN / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A vhost-user server as a front end.
struct VhostUserFrontEnd(VhostServer);

impl FrontEnd for VhostUserFrontEnd {
    fn place(&self) -> AttachmentPlace {
        AttachmentPlace::VhostUser { socket: self.0.path().to_owned() }
    }

    /// Its socket is for virtual machines to find, not a device.
    fn device(&self) -> Option<PathBuf> {
        None
    }

    fn client_counter(&self) -> Option<ClientCounter> {
        Some(Box::new(self.0.client_counter()))
    }

    fn announce(&self) {
        println!("{}", self.0.path().display());
    }

    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.0.ended_fd()
    }

    fn growth_follower(&self) -> impl Fn() + Send + 'static {
        self.0.growth_follower()
    }

    /// Nothing is cached here, and every write fails.
    fn drop_caches(&mut self, _why: &str) {}

    fn finish(self) -> Result<(), NotEnded<Self>> {
        self.0.finish().map_err(|error| (None, error.into()))
    }

    fn end_by_force(self) {
        self.0.abandon();
    }
}
