//! The messages and services of the CSI specification, as `build.rs` compiles them. `Debug` of a request with secrets shows none.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::disallowed_methods)]

tonic::include_proto!("csi.v1");

/// `Debug` by the name alone: what is in it may be secret.
macro_rules! name_only {
    ($($message:ident),* $(,)?) => {
        $(impl std::fmt::Debug for $message {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($message))
            }
        })*
    };
}

name_only!(
    CreateVolumeRequest,
    DeleteVolumeRequest,
    ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest,
    ValidateVolumeCapabilitiesRequest,
    ControllerListVolumeHealthRequest,
    ControllerGetVolumeHealthRequest,
    ControllerModifyVolumeRequest,
    CreateSnapshotRequest,
    DeleteSnapshotRequest,
    ListSnapshotsRequest,
    GetSnapshotRequest,
    ControllerExpandVolumeRequest,
    NodeStageVolumeRequest,
    NodePublishVolumeRequest,
    NodeGetStorageHealthRequest,
    NodeExpandVolumeRequest,
    CreateVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest,
    GetMetadataAllocatedRequest,
    GetMetadataDeltaRequest,
);
