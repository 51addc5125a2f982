//! store_plans
