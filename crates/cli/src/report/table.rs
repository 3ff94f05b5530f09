//! Aligned tables for people.

use std::io::{self, BufWriter, Write};

use crate::report::terminal;

/// Alignment of a column's cells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Prints a header and rows of cells in columns that are as wide as their widest cell.
pub fn print(out: &mut impl Write, header: &[(&str, Align)], rows: &[Vec<String>]) -> io::Result<()> {
    let mut widths: Vec<usize> = header.iter().map(|(name, _)| name.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let names: Vec<&str> = header.iter().map(|(name, _)| *name).collect();
    print_row(out, header, &widths, &names)?;
    for row in rows {
        print_row(out, header, &widths, row)?;
    }
    Ok(())
}

/// Prints a table on standard output.
pub fn print_stdout(header: &[(&str, Align)], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let mut out = BufWriter::new(terminal::stdout());
    print(&mut out, header, rows)?;
    Ok(out.flush()?)
}

fn print_row(
    out: &mut impl Write,
    header: &[(&str, Align)],
    widths: &[usize],
    row: &[impl AsRef<str>],
) -> io::Result<()> {
    let mut line = String::new();
    for ((cell, &width), (_, align)) in row.iter().zip(widths).zip(header) {
        let cell = cell.as_ref();
        match align {
            Align::Left => line.push_str(&format!("{cell:<width$}  ")),
            Align::Right => line.push_str(&format!("{cell:>width$}  ")),
        }
    }
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut out = Vec::new();
        let rows = [vec!["a".to_string(), "1000".to_string()], vec!["long".to_string(), "7".to_string()]];
        print(&mut out, &[("name", Align::Left), ("n", Align::Right)], &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "name     n\na     1000\nlong     7\n");
    }
}
