//! `strongroom discover`: what a volume or a target has to offer.
