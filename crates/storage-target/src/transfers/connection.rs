//! One connection of a transfer, blocking: messages out and in. The same at both ends.

use std::net::TcpStream;
use std::time::Instant;

use strongroom_block::Buffer;
use strongroom_channel::Frame;
use strongroom_net::DetachedChannel;

use super::message::Message;
use crate::channel_stream::{ChannelStream, ConnectionError};

pub(crate) struct Connection(ChannelStream);

impl Connection {
    /// Takes over from the handshake; sends what that left.
    pub(crate) fn new(
        stream: TcpStream,
        channel: DetachedChannel,
        deadline: Instant,
    ) -> Result<Connection, ConnectionError> {
        ChannelStream::new(stream, channel, deadline).map(Connection)
    }

    pub(crate) fn send(&mut self, message: &Message, data: &[u8], deadline: Instant) -> Result<(), ConnectionError> {
        self.0.send(&message.encode(), data, deadline)
    }

    /// The next message, and the data that it carries.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<(Message, Buffer), ConnectionError> {
        self.0.receive(deadline).and_then(decode)
    }

    /// The next message if it is here already.
    pub(crate) fn receive_ready(&mut self) -> Result<Option<(Message, Buffer)>, ConnectionError> {
        self.0.receive_ready()?.map(decode).transpose()
    }

    /// Says goodbye, and gives the other end a moment to take in the last message.
    pub(crate) fn close(self) {
        self.0.close();
    }
}

fn decode(frame: Frame) -> Result<(Message, Buffer), ConnectionError> {
    let message = Message::decode(&frame.header, frame.data.len()).map_err(|_| ConnectionError::Malformed)?;
    Ok((message, frame.data))
}
