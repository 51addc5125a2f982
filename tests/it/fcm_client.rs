//! fcm_client
