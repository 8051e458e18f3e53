//! Connections whose listening socket everybody has closed. A socket listens at its name for a moment, and they are
//! made through that, so that both ends have their names.
//!
//! This comes before all other sockets: another may have the name by now. The name of a file stays where it had stayed.

use std::collections::BTreeMap;

use rekindle_restore_program::Code;
use rekindle_verify::messages::UnixSocket;

use super::{SocketPeer, UNIX, UnixSockets, is_connected, is_removed, may_connect, name_of};
use crate::Refusal;
use crate::builder::Builder;

impl<'a> UnixSockets<'a> {
    /// Finds the accepted ends of such connections, each with the end that connected.
    pub(super) fn find_closed(&self) -> BTreeMap<u32, &'a UnixSocket> {
        let mut found: BTreeMap<u32, &'a UnixSocket> = BTreeMap::new();
        for end in self.all().filter(|socket| self.is_end(socket)) {
            let Ok(SocketPeer::End(client)) = self.peer(end) else {
                continue;
            };
            // If both have names, the later one was accepted.
            let is_later = !self.is_end(client) || client.ino < end.ino;
            let is_whole = self.number(end).is_ok() && self.number(client).is_ok();
            if is_later && is_whole && self.listening_at(client).is_none() {
                found.insert(end.id, client);
            }
        }
        found
    }

    /// Whether it is connected and has a name at which nobody listens any more.
    fn is_end(&self, socket: &UnixSocket) -> bool {
        let has_name = is_connected(socket) && !socket.name.is_empty() && may_connect(socket);
        // One that none of the processes has open may be in its way.
        has_name && !self.unconnected.contains_key(&name_of(socket))
    }

    /// Makes these connections.
    pub(crate) fn reconnect(&mut self, b: &mut Builder) -> Result<(), Refusal> {
        type Name<'a> = (u32, Option<&'a [u8]>, &'a [u8], bool);
        let mut by_name: BTreeMap<Name<'a>, Vec<[&'a UnixSocket; 2]>> = BTreeMap::new();
        for end in self.all() {
            if let Some(client) = self.closed.get(&end.id) {
                let name = (end.kind, end.name_dir.as_deref(), end.name.as_slice(), is_removed(end));
                by_name.entry(name).or_default().push([client, end]);
            }
        }
        for connections in by_name.into_values() {
            let [_, named] = connections[0];
            b.op(Code::Socket, self.spare, [UNIX.into(), named.kind.into(), 0]);
            self.take_name(b, self.spare, named);
            b.op(Code::Listen, self.spare, [1]);
            for [client, end] in connections {
                for socket in [client, end] {
                    self.check(socket).map_err(self.refuse(socket))?;
                    self.made.push(socket);
                }
                self.accept(b, self.spare, client, end).map_err(self.refuse(end))?;
            }
            b.op(Code::CloseRange, self.spare, [u64::from(self.spare) + 1]);
            if is_removed(named) {
                b.path(Code::Unlink, 0, &named.path());
            }
        }
        Ok(())
    }
}
