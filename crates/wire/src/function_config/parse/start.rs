//! What runs, and how it is reached: runtime, image, command, port, protocol and interface.

use std::ops::Range;

use toml::Spanned;

use super::super::{Base, Interface, PORT, Protocol, Runtime, interface};
use super::{Checker, FunctionConfigError};

const PORTS: Range<u64> = 1..65_536;
/// Maximum length of an image's name in bytes.
const IMAGE_MAX: usize = 512;

impl Checker<'_> {
    pub(super) fn interface(
        &self,
        runtime: Runtime,
        name: Option<Spanned<String>>,
    ) -> Result<Interface, FunctionConfigError> {
        match name.as_ref().map(|name| (name.get_ref().as_str(), name.span())) {
            None | Some(("http", _)) => Ok(Interface::Http),
            Some(("lambda", _)) if runtime == Runtime::Http => Ok(Interface::Lambda),
            Some(("lambda", span)) => self.refuse(
                Some(span),
                "interface = \"lambda\" is for images and runtime = \"http\" only, as python and node call handlers \
                 themselves: remove the line",
            ),
            Some((other, span)) => self.refuse(
                Some(span),
                format!("interface = \"{other}\" is not known: use \"http\" (the default) or \"lambda\""),
            ),
        }
    }

    /// The handler and the command of a function that has Lambda's interface.
    pub(super) fn start_lambda(
        &self,
        is_image: bool,
        entry: Option<Spanned<String>>,
        command: Option<Spanned<Vec<String>>>,
    ) -> Result<(Option<String>, Vec<String>), FunctionConfigError> {
        let command = match command {
            Some(command) => self.start(Runtime::Http, None, Some(command))?.1,
            None if is_image => Vec::new(),
            None => vec![interface::BOOTSTRAP.to_owned()],
        };
        match entry {
            Some(entry) if entry.get_ref().is_empty() || entry.get_ref().contains(char::is_whitespace) => self.refuse(
                Some(entry.span()),
                format!(
                    "entry = \"{}\" is not a handler: write what _HANDLER shall be",
                    entry.get_ref()
                ),
            ),
            entry => Ok((entry.map(Spanned::into_inner), command)),
        }
    }

    pub(super) fn start(
        &self,
        runtime: Runtime,
        entry: Option<Spanned<String>>,
        command: Option<Spanned<Vec<String>>>,
    ) -> Result<(Option<String>, Vec<String>), FunctionConfigError> {
        match (runtime, entry, command) {
            (Runtime::Http, None, Some(command)) if !command.get_ref().is_empty() => {
                if command.get_ref().iter().any(|a| a.contains('\0')) {
                    return self.refuse(Some(command.span()), "command contains a NUL character: remove it");
                }
                Ok((None, command.into_inner()))
            }
            (Runtime::Http, Some(entry), _) => self.refuse(
                Some(entry.span()),
                "runtime \"http\" has no entry: write command = [\"./server\"], which must serve HTTP on $PORT",
            ),
            (Runtime::Http, None, _) => self.refuse(
                None,
                "runtime \"http\" needs command = [\"./server\"], which must serve HTTP on $PORT",
            ),
            (_, _, Some(command)) => self.refuse(
                Some(command.span()),
                "command is for runtime = \"http\" only: write entry = \"file.function\" instead",
            ),
            (_, Some(entry), None) => {
                let text = entry.get_ref();
                let good = text.rsplit_once('.').is_some_and(|(file, function)| {
                    !file.is_empty()
                        && !function.is_empty()
                        && !file.starts_with('/')
                        && !file.split(['/', '.']).any(str::is_empty)
                        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./$-".contains(c))
                });
                if good {
                    Ok((Some(entry.into_inner()), Vec::new()))
                } else {
                    self.refuse(
                        Some(entry.span()),
                        format!(
                            "entry = \"{text}\" is not a handler: write \"file.function\", for example \"main.handler\""
                        ),
                    )
                }
            }
            (_, None, None) => self.refuse(
                None,
                "entry is missing: write entry = \"file.function\", for example \"main.handler\"",
            ),
        }
    }

    pub(super) fn image(
        &self,
        image: Option<Spanned<String>>,
        runtime: Option<&Spanned<String>>,
        base: Option<&Spanned<Base>>,
    ) -> Result<Option<String>, FunctionConfigError> {
        let Some(image) = image else {
            return Ok(None);
        };
        let beside = runtime.map(Spanned::span).or_else(|| base.map(Spanned::span));
        if let Some(span) = beside {
            return self.refuse(
                Some(span),
                "an image brings its own runtime and root filesystem: remove this line, or image",
            );
        }
        let text = image.get_ref();
        let good =
            (1..=IMAGE_MAX).contains(&text.len()) && !text.contains(char::is_whitespace) && !text.starts_with('-');
        if !good {
            return self.refuse(
                Some(image.span()),
                format!(
                    "image = \"{text}\" is not the name of an image: write \"REGISTRY/NAME:TAG\", or a path that \
                     begins with ./"
                ),
            );
        }
        Ok(Some(image.into_inner()))
    }

    pub(super) fn port(&self, runtime: Runtime, port: Option<Spanned<u64>>) -> Result<u16, FunctionConfigError> {
        match port {
            None => Ok(PORT),
            Some(port) if runtime != Runtime::Http => self.refuse(
                Some(port.span()),
                "port is for images and runtime = \"http\" only: remove the line",
            ),
            Some(port) => match u16::try_from(*port.get_ref()) {
                Ok(number) if PORTS.contains(port.get_ref()) => Ok(number),
                _ => self.refuse(
                    Some(port.span()),
                    format!(
                        "port = {} is impossible: use {} to {}",
                        port.get_ref(),
                        PORTS.start,
                        PORTS.end - 1
                    ),
                ),
            },
        }
    }

    pub(super) fn protocol(
        &self,
        runtime: Runtime,
        interface: Interface,
        protocol: Option<Spanned<String>>,
    ) -> Result<Protocol, FunctionConfigError> {
        let Some(protocol) = protocol else {
            return Ok(Protocol::default());
        };
        let refused = match protocol.get_ref().as_str() {
            _ if runtime != Runtime::Http => {
                "protocol is for images and runtime = \"http\" only: remove the line".to_owned()
            }
            _ if interface == Interface::Lambda => "interface = \"lambda\" serves nothing: remove the line".to_owned(),
            "http1" => return Ok(Protocol::Http1),
            "h2c" => return Ok(Protocol::H2c),
            other => format!("protocol = \"{other}\" is not known: use \"http1\" (the default) or \"h2c\""),
        };
        self.refuse(Some(protocol.span()), refused)
    }

    pub(super) fn runtime(
        &self,
        name: &Spanned<String>,
        base: Option<Spanned<Base>>,
    ) -> Result<(Runtime, Base), FunctionConfigError> {
        let text = name.get_ref().as_str();
        match (
            Base::of_runtime(text).and_then(|base| Some((base.runtime()?, base))),
            base,
        ) {
            (None, base) if text == "http" => Ok((Runtime::Http, base.map_or(Base::Base, Spanned::into_inner))),
            (None, _) => {
                let interpreters = Base::ALL.into_iter().filter_map(Base::interpreter);
                let known: Vec<_> = interpreters.map(|interpreter| interpreter.versioned).collect();
                self.refuse(
                    Some(name.span()),
                    format!("runtime = \"{text}\" is not known: use http, {}", known.join(", ")),
                )
            }
            (_, Some(base)) => self.refuse(
                Some(base.span()),
                "base is for runtime = \"http\" only: remove the line",
            ),
            (Some(found), None) => Ok(found),
        }
    }
}
