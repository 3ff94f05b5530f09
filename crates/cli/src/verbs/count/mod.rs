//! `inshore count`: k-mers and values of columns, and words of texts.

#[cfg(feature = "records")]
pub mod records;
#[cfg(feature = "text")]
pub mod words;
