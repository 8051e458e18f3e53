//! Gets the container image of a function as an OCI image layout.
//!
//! | `image` in fn.toml | got by |
//! |---|---|
//! | a directory with a layout | itself |
//! | an archive of a layout, as new `docker save` writes it | unpacking it |
//! | an older archive of `docker save` | skopeo |
//! | a name in a registry | skopeo, with the credentials of `skopeo login`, `podman login` or `docker login` |
//! | a `Dockerfile` or `Containerfile` | buildah or podman |
//!
//! Workers never see a registry, nor its credentials.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use tempfile::TempDir;

use crate::show::{self, Tone};

/// Files of every layout.
const LAYOUT: [&str; 2] = ["oci-layout", "index.json"];
/// Name of the image in a layout that is made here.
const TAG: &str = "image";
const DOCKERFILES: [&str; 2] = ["Dockerfile", "Containerfile"];

pub(super) struct Layout {
    pub(super) path: PathBuf,
    /// Removed when dropped, if it was made for the deploy.
    _made: Option<TempDir>,
}

/// Gets the image that fn.toml in `folder` names. Blocks; what other programs say goes to standard error.
pub(super) fn layout(folder: &Path, image: &str) -> Result<Layout> {
    if !is_path(image) {
        if folder.join(image).exists() {
            bail!("image = \"{image}\" is the name of an image in a registry: write \"./{image}\" for the file");
        }
        return copied(&format!("docker://{image}"), image);
    }
    let path = folder.join(image);
    let metadata = path
        .metadata()
        .with_context(|| format!("image = \"{image}\": {} cannot be read", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if metadata.is_dir() {
        if LAYOUT.iter().all(|file| path.join(file).is_file()) {
            return Ok(Layout { path, _made: None });
        }
        match DOCKERFILES
            .iter()
            .map(|file| path.join(file))
            .find(|file| file.is_file())
        {
            Some(file) => built(&file),
            None => bail!(
                "image = \"{image}\" is neither an OCI image layout nor a folder with a Dockerfile: name an archive, a \
                 layout or a Dockerfile"
            ),
        }
    } else if DOCKERFILES.iter().any(|file| name.starts_with(file)) || name.ends_with(".Dockerfile") {
        built(&path)
    } else if is_layout(&path)? {
        let made = temporary()?;
        let file = File::open(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let unpacked = tar::Archive::new(file).unpack(made.path());
        unpacked.with_context(|| format!("{} cannot be unpacked", path.display()))?;
        Ok(Layout {
            path: made.path().to_owned(),
            _made: Some(made),
        })
    } else {
        copied(&format!("docker-archive:{}", path.display()), image)
    }
}

/// Whether an image is named by its path.
fn is_path(image: &str) -> bool {
    image.starts_with(['.', '/'])
}

/// Whether a tar has a layout.
fn is_layout(path: &Path) -> Result<bool> {
    let what = || {
        format!(
            "{} is no archive of an image: save it with `docker save` or as an OCI archive",
            path.display()
        )
    };
    let file = File::open(path).with_context(what)?;
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek().with_context(what)? {
        let entry = entry.with_context(what)?;
        if entry
            .path()
            .is_ok_and(|name| name.strip_prefix(".").unwrap_or(&name) == Path::new(LAYOUT[1]))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn temporary() -> Result<TempDir> {
    tempfile::tempdir().context("no temporary directory could be made for the image")
}

/// Copies an image with skopeo, for the platform of functions.
fn copied(from: &str, image: &str) -> Result<Layout> {
    let made = temporary()?;
    let path = made.path().join("layout");
    let mut command = Command::new("skopeo");
    command.args(["--override-os", "linux", "--override-arch", "amd64", "copy", from]);
    command.arg(format!("oci:{}:{TAG}", path.display()));
    run(
        &mut command,
        &format!("image = \"{image}\" is copied with skopeo, which is missing: install it (apt-get install skopeo)"),
    )?;
    Ok(Layout {
        path,
        _made: Some(made),
    })
}

/// Builds a Dockerfile in its directory.
fn built(file: &Path) -> Result<Layout> {
    let made = temporary()?;
    let path = made.path().join("layout");
    let id = made.path().join("id");
    let directory = file.parent().unwrap_or(Path::new("."));
    let missing = format!(
        "{} is built with buildah or podman, and both are missing: install one (apt-get install buildah), or name an \
         image that is built elsewhere",
        file.display()
    );
    let builder = ["buildah", "podman"].into_iter().find(|name| is_installed(name));
    let builder = builder.ok_or_else(|| anyhow!(missing.clone()))?;
    let mut build = Command::new(builder);
    build
        .args(["build", "--layers", "--platform", "linux/amd64", "--iidfile"])
        .arg(&id);
    build.arg("--file").arg(file).arg(directory);
    run(&mut build, &missing)?;
    let id = std::fs::read_to_string(&id).with_context(|| format!("{builder} named no image"))?;
    let mut push = Command::new(builder);
    push.args(["push", id.trim()])
        .arg(format!("oci:{}:{TAG}", path.display()));
    run(&mut push, &missing)?;
    Ok(Layout {
        path,
        _made: Some(made),
    })
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    found.is_ok_and(|output| output.status.success())
}

/// Runs a program to its end. Its output goes to standard error.
fn run(command: &mut Command, missing: &str) -> Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let shown = shown.join(" ");
    eprintln!("{} {shown}", show::tinted_err("image", Tone::Faint));
    let status = command.stdin(Stdio::null()).stdout(io::stderr()).status();
    let status = status.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => anyhow!(missing.to_owned()),
        _ => anyhow!(e).context(format!("{shown}: could not be started")),
    })?;
    match status.success() {
        true => Ok(()),
        false => bail!("{shown}: ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(folder: &Path, image: &str) -> String {
        match layout(folder, image) {
            Ok(_) => panic!("{image} is no image"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn a_layout_is_used_as_it_is_and_an_archive_of_one_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("layout");
        std::fs::create_dir(&directory).unwrap();
        for file in LAYOUT {
            std::fs::write(directory.join(file), "{}").unwrap();
        }
        assert_eq!(
            layout(folder.path(), "./layout").unwrap().path,
            folder.path().join("./layout")
        );
        let mut archive = tar::Builder::new(File::create(folder.path().join("app.tar")).unwrap());
        for file in LAYOUT {
            archive
                .append_path_with_name(directory.join(file), format!("./{file}"))
                .unwrap();
        }
        archive.into_inner().unwrap();
        let unpacked = layout(folder.path(), "./app.tar").unwrap();
        assert_eq!(std::fs::read_to_string(unpacked.path.join("index.json")).unwrap(), "{}");
    }

    #[test]
    fn what_is_no_image_is_told_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("app.tar"), "no archive").unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        for (image, expected) in [
            ("app.tar", "write \"./app.tar\""),
            ("./app.tar", "docker save"),
            ("./missing.tar", "cannot be read"),
            ("./empty", "neither an OCI image layout nor a folder with a Dockerfile"),
        ] {
            let told = told(folder.path(), image);
            assert!(told.contains(expected), "{image}: {told}");
        }
    }
}
