//! Owns the client of our own API.
//! Must never know: the server's insides.
