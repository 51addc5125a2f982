//! Owns FCM HTTP v1: messages, connections, credentials, and what an answer means.
//! Must never know: chunks, fan-outs, SQL, or when a retry is due.
