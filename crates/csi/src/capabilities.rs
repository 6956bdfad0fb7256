//! Volume capabilities: how a volume is to be used, checked, and which uses this driver has. Absent: doing it.

use tonic::Status;

use crate::spec::VolumeCapability;
use crate::spec::volume_capability::access_mode::Mode;
use crate::spec::volume_capability::{AccessType, MountVolume};

/// The file systems that this driver makes, grows and mounts; the first is the usual one.
const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];
/// More options of a mount, or longer ones, than mounts have.
const MOUNT_OPTIONS_MAX: usize = 64;
const MOUNT_OPTION_BYTES_MAX: usize = 128;

/// How a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeUse {
    pub(crate) access: AccessKind,
    pub(crate) mode: AccessMode,
}

/// As what programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Block,
    FileSystem { file_system: &'static str, options: Vec<String> },
}

/// From where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    /// One node.
    SingleNode,
    /// One node, and published there once.
    SingleWriter,
    /// Nobody writes.
    ReadOnly { several_nodes: bool },
    /// Several nodes write, and coordinate.
    SharedWriters,
}

impl AccessMode {
    pub(crate) fn is_read_only(self) -> bool {
        matches!(self, AccessMode::ReadOnly { .. })
    }

    /// Whether another node may have it at the same time.
    pub(crate) fn is_of_several_nodes(self) -> bool {
        matches!(self, AccessMode::SharedWriters | AccessMode::ReadOnly { several_nodes: true })
    }
}

impl VolumeUse {
    /// What a capability says.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if it is incomplete, or not to be had.
    pub(crate) fn of(capability: Option<&VolumeCapability>) -> Result<VolumeUse, Status> {
        let missing = |what: &str| Status::invalid_argument(format!("the volume capability has no {what}"));
        let capability = capability.ok_or_else(|| Status::invalid_argument("there is no volume capability"))?;
        let access = match capability.access_type.as_ref().ok_or_else(|| missing("access type"))? {
            AccessType::Block(_) => AccessKind::Block,
            AccessType::Mount(mount) => file_system(mount)?,
        };
        let mode = capability.access_mode.as_ref().ok_or_else(|| missing("access mode"))?.mode();
        let mode = match mode {
            Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => AccessMode::SingleNode,
            Mode::SingleNodeSingleWriter => AccessMode::SingleWriter,
            Mode::SingleNodeReaderOnly => AccessMode::ReadOnly { several_nodes: false },
            Mode::MultiNodeReaderOnly => AccessMode::ReadOnly { several_nodes: true },
            Mode::MultiNodeMultiWriter if access == AccessKind::Block => AccessMode::SharedWriters,
            Mode::MultiNodeMultiWriter => {
                return Err(Status::invalid_argument(
                    "a file system that several nodes mount for writing is destroyed: use volumeMode Block for ReadWriteMany, and \
                     programs or a cluster file system that coordinate",
                ));
            }
            Mode::MultiNodeSingleWriter => {
                return Err(Status::invalid_argument(
                    "a writer with readers on other nodes is not supported (stale reads): use ReadOnlyMany",
                ));
            }
            Mode::Unknown => return Err(missing("access mode that this driver knows")),
        };
        Ok(VolumeUse { access, mode })
    }

    /// What each of them says; there must be one.
    ///
    /// # Errors
    /// Those of [`VolumeUse::of`].
    pub(crate) fn of_all(capabilities: &[VolumeCapability]) -> Result<Vec<VolumeUse>, Status> {
        if capabilities.is_empty() {
            return Err(Status::invalid_argument("there are no volume capabilities"));
        }
        capabilities.iter().map(|capability| VolumeUse::of(Some(capability))).collect()
    }
}

fn file_system(mount: &MountVolume) -> Result<AccessKind, Status> {
    let wanted = if mount.fs_type.is_empty() { FILE_SYSTEMS[0] } else { mount.fs_type.as_str() };
    let Some(file_system) = FILE_SYSTEMS.into_iter().find(|known| *known == wanted) else {
        return Err(Status::invalid_argument(format!("there are the file systems {}", FILE_SYSTEMS.join(" and "))));
    };
    if !mount.volume_mount_group.is_empty() {
        return Err(Status::invalid_argument("this driver does not set a mount group; leave it to fsGroup"));
    }
    if mount.mount_flags.len() > MOUNT_OPTIONS_MAX || !mount.mount_flags.iter().all(|option| is_mount_option(option)) {
        return Err(Status::invalid_argument(
            "a mount option is one word of letters, digits and '_=:.+-', and does not begin with '-'",
        ));
    }
    Ok(AccessKind::FileSystem { file_system, options: mount.mount_flags.clone() })
}

/// One option, and not several: no comma, nothing that a command line could take for something else.
fn is_mount_option(option: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_=:.+-".contains(&byte);
    !option.is_empty()
        && option.len() <= MOUNT_OPTION_BYTES_MAX
        && !option.starts_with('-')
        && option.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::spec::volume_capability::{AccessMode as SpecMode, BlockVolume};

    fn capability(access: Option<AccessType>, mode: Option<Mode>) -> VolumeCapability {
        VolumeCapability { access_type: access, access_mode: mode.map(|mode| SpecMode { mode: mode.into() }) }
    }

    fn mount(fs_type: &str, flags: &[&str]) -> Option<AccessType> {
        let mount_flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        Some(AccessType::Mount(MountVolume { fs_type: fs_type.into(), mount_flags, volume_mount_group: String::new() }))
    }

    fn parsed(access: Option<AccessType>, mode: Option<Mode>) -> Result<VolumeUse, Code> {
        VolumeUse::of(Some(&capability(access, mode))).map_err(|status| status.code())
    }

    #[test]
    fn modes_are_had_or_refused() {
        let block = || Some(AccessType::Block(BlockVolume {}));
        for (mode, of_files, of_blocks) in [
            (Mode::SingleNodeWriter, true, true),
            (Mode::SingleNodeSingleWriter, true, true),
            (Mode::SingleNodeMultiWriter, true, true),
            (Mode::SingleNodeReaderOnly, true, true),
            (Mode::MultiNodeReaderOnly, true, true),
            (Mode::MultiNodeSingleWriter, false, false),
            (Mode::MultiNodeMultiWriter, false, true),
            (Mode::Unknown, false, false),
        ] {
            assert_eq!(parsed(mount("", &[]), Some(mode)).is_ok(), of_files, "{mode:?}");
            assert_eq!(parsed(block(), Some(mode)).is_ok(), of_blocks, "{mode:?}");
        }
        assert!(parsed(block(), Some(Mode::MultiNodeMultiWriter)).unwrap().mode.is_of_several_nodes());
        assert!(!parsed(block(), Some(Mode::SingleNodeWriter)).unwrap().mode.is_of_several_nodes());
    }

    #[test]
    fn what_is_incomplete_or_unknown_is_refused() {
        assert_eq!(parsed(None, Some(Mode::SingleNodeWriter)), Err(Code::InvalidArgument));
        assert_eq!(parsed(mount("", &[]), None), Err(Code::InvalidArgument));
        assert_eq!(parsed(mount("ntfs", &[]), Some(Mode::SingleNodeWriter)), Err(Code::InvalidArgument));
        assert_eq!(VolumeUse::of(None).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(VolumeUse::of_all(&[]).unwrap_err().code(), Code::InvalidArgument);
        let xfs = parsed(mount("xfs", &["noatime"]), Some(Mode::SingleNodeWriter)).unwrap();
        assert_eq!(xfs.access, AccessKind::FileSystem { file_system: "xfs", options: vec!["noatime".into()] });
    }

    /// Options come from those who may make a PersistentVolume, and end in the options of a mount.
    #[test]
    fn attack_csi_mount_options_that_are_more_than_one() {
        for option in ["a,b", "-o", "--bind", "", "a b", "a\nb", "a\0b", "loop=/etc/shadow", "é", &"x".repeat(200)] {
            let refused = parsed(mount("", &[option]), Some(Mode::SingleNodeWriter));
            assert_eq!(refused, Err(Code::InvalidArgument), "{option:?}");
        }
        assert!(parsed(mount("", &["commit=30", "context=a:b"]), Some(Mode::SingleNodeWriter)).is_ok());
    }
}
