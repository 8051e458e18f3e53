//! Builds the root filesystem of a container image, which is uploaded as an OCI image layout beside `fn.toml`.
//!
//! ```text
//! image/index.json, image/blobs/… ─► unpack, without privileges ─► rootfs tar
//! ```
//!
//! The function's own layer is empty, and is not mounted.

use std::sync::Arc;

use rekindle_confined::image::ImageError;
use rekindle_confined::upload;
use tracing::Instrument as _;

use super::build_dir::BuildDir;
use super::{BuildError, BuildOrder, Progress, Tars, blocking, pack, platform_programs};
use crate::layers::image;

/// The layout's directory in the uploaded folder.
const LAYOUT: &str = "image";

/// Unpacks and packs the image. The folder has been unpacked.
pub(super) async fn build(
    order: &BuildOrder<'_>,
    build_dir: &Arc<BuildDir>,
    progress: &Progress<'_>,
) -> Result<Tars, BuildError> {
    let layout = build_dir.app().join(LAYOUT);
    if !layout.is_dir() {
        let what = format!("there is none in {LAYOUT}/ of the upload: deploy it with `fn deploy`");
        return Err(ImageError::Malformed(what).into());
    }
    progress("unpacking the image");
    let limits = order.limits;
    let (confinement, groups, unpacked) = (
        order.confinement.clone(),
        order.cgroup_procs.clone(),
        Arc::clone(build_dir),
    );
    let unpacking = tracing::info_span!("unpack image", "rekindle.role" = "worker");
    let has_command = !order.config.command.is_empty();
    let unpack = move || -> Result<(), BuildError> {
        let most = upload::Limits {
            unpacked_bytes: limits.unpacked_bytes,
            files: limits.files,
        };
        let root = unpacked.root();
        confinement.image(&layout, &root, unpacked.id, most, limits.install_timeout, &groups)??;
        let config = image::config(&root).map_err(|source| BuildError::WorkDir {
            action: "read the image's configuration in",
            path: root,
            source,
        })?;
        if config.command.is_empty() && !has_command {
            let what = "it has neither an entry point nor a command: set command in fn.toml";
            return Err(ImageError::Malformed(what.to_owned()).into());
        }
        Ok(())
    };
    blocking(unpack).instrument(unpacking).await??;
    progress("packing the image");
    platform_programs::add_to_image(order.config, build_dir)?;
    let (layer, rootfs) = (order.tar(), order.tar());
    let tars = Tars {
        layer: layer.clone(),
        rootfs: Some(rootfs.clone()),
    };
    let (build_dir, made) = (Arc::clone(build_dir), tars.clone());
    let packing = tracing::info_span!("pack", "rekindle.role" = "worker");
    let packed = blocking(move || {
        pack::pack(&[], std::iter::empty(), &layer, &limits)
            .and_then(|()| pack::pack_root(&build_dir.root(), &rootfs, &limits))
            .inspect_err(|_| made.remove())
    });
    packed.instrument(packing).await??;
    Ok(tars)
}
