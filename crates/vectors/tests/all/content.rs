//! Tests of vectors of images: generated files, their histograms, and files that are refused.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use arrow_array::{RecordBatch, cast::AsArray, types::UInt64Type};

use crate::support::{Made, Random, Setup};
use inshore_vectors::{
    AnswerColumns, Changed, Content, ContentRows, Element, Error, Images, ImportedContent, ImportedFrom,
    Metric, Result, Search, Vectors, add_content, compact_vectors, content_queries, describe, describe_lists,
    import_content, remove_vectors, search,
};

const GREY: u8 = 0;
const RGB: u8 = 2;
const PALETTE: u8 = 3;
const GREY_ALPHA: u8 = 4;
const RGB_ALPHA: u8 = 6;

/// Returns a colour of the palette of generated images.
fn palette(value: u8) -> [u8; 3] {
    [value, value / 2, 255 - value]
}

/// Appends a chunk of a PNG file.
fn push_chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    let whole = [&kind[..], data].concat();
    png.extend(&whole);
    let mut crc = flate2::Crc::new();
    crc.update(&whole);
    png.extend(crc.sum().to_be_bytes());
}

/// Applies PNG filters to rows of packed samples. Consecutive rows have different filters.
fn filtered(rows: &[Vec<u8>], pixel: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let zeros = vec![0; row.len()];
        let above = if number == 0 { &zeros } else { &rows[number - 1] };
        let filter = number % 5;
        out.push(filter as u8);
        for (place, &byte) in row.iter().enumerate() {
            let before = |row: &[u8]| if place < pixel { 0 } else { i32::from(row[place - pixel]) };
            let (left, up, corner) = (before(row), i32::from(above[place]), before(above));
            let predicted = match filter {
                0 => 0,
                1 => left,
                2 => up,
                3 => (left + up) / 2,
                _ => {
                    let target = left + up - corner;
                    *[left, up, corner].iter().min_by_key(|value| (target - **value).abs()).unwrap()
                }
            };
            out.push(byte.wrapping_sub(predicted as u8));
        }
    }
    out
}

/// Encodes a PNG file. `sample` returns the value of a channel of the pixel at x, y.
fn encoded(
    (color, depth, is_interlaced): (u8, usize, bool),
    (width, height): (usize, usize),
    sample: impl Fn(usize, usize, usize) -> u16,
) -> Vec<u8> {
    let channels = [1, 0, 3, 1, 2, 0, 4][usize::from(color)];
    let row = |xs: &[usize], y: usize| -> Vec<u8> {
        let bits = xs.iter().flat_map(|&x| (0..channels).map(move |channel| (x, channel)));
        let bits: String =
            bits.map(|(x, channel)| format!("{:0depth$b}", sample(x, y, channel), depth = depth)).collect();
        let byte =
            |bits: &[u8]| (0..8).fold(0, |byte, at| byte << 1 | bits.get(at).map_or(0, |bit| bit - b'0'));
        bits.as_bytes().chunks(8).map(byte).collect()
    };
    let passes: &[[usize; 4]] = match is_interlaced {
        false => &[[0, 0, 1, 1]],
        true => &[
            [0, 0, 8, 8],
            [4, 0, 8, 8],
            [0, 4, 4, 8],
            [2, 0, 4, 4],
            [0, 2, 2, 4],
            [1, 0, 2, 2],
            [0, 1, 1, 2],
        ],
    };
    let mut data = Vec::new();
    for &[x0, y0, dx, dy] in passes {
        let xs: Vec<usize> = (x0..width).step_by(dx).collect();
        let ys = (y0..height).step_by(dy).filter(|_| !xs.is_empty());
        data.extend(filtered(&ys.map(|y| row(&xs, y)).collect::<Vec<_>>(), (channels * depth).div_ceil(8)));
    }
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [(width as u32).to_be_bytes(), (height as u32).to_be_bytes()].concat();
    push_chunk(
        &mut png,
        b"IHDR",
        &[&size[..], &[depth as u8, color, 0, 0, u8::from(is_interlaced)]].concat(),
    );
    if color == PALETTE {
        push_chunk(&mut png, b"PLTE", &(0..=255).flat_map(palette).collect::<Vec<u8>>());
    }
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&data).unwrap();
    // The compressed data is split into several chunks.
    for part in packed.finish().unwrap().chunks(1000) {
        push_chunk(&mut png, b"IDAT", part);
    }
    push_chunk(&mut png, b"IEND", &[]);
    png
}

/// Encodes a PNG file with 8 bits for each channel.
fn png_of(color: u8, width: usize, height: usize, data: &[u8]) -> Vec<u8> {
    let channels = data.len() / (width * height);
    encoded((color, 8, false), (width, height), |x, y, channel| {
        data[(y * width + x) * channels + channel].into()
    })
}

/// Encodes a baseline JPEG file of grey squares of 8 x 8 pixels. The data has one coefficient for each square.
fn jpeg_of(squares_wide: u16, greys: &[u8]) -> Vec<u8> {
    let (width, height) = (8 * squares_wide, 8 * (greys.len() as u16 / squares_wide));
    let mut bytes = vec![0xff, 0xd8];
    let mut segment = |marker: u8, data: &[u8]| {
        bytes.extend([0xff, marker]);
        bytes.extend((data.len() as u16 + 2).to_be_bytes());
        bytes.extend(data);
    };
    segment(0xdb, &[&[0][..], &[1; 64]].concat());
    let [w, h] = [width, height].map(u16::to_be_bytes);
    segment(0xc0, &[8, h[0], h[1], w[0], w[1], 1, 1, 0x11, 0]);
    // The first table has twelve codes of 4 bits, for the sizes of differences. The second table has one code of 1 bit,
    // for the end of a square.
    let (mut lengths, sizes): ([u8; 16], Vec<u8>) = ([0; 16], (0..12).collect());
    lengths[3] = 12;
    segment(0xc4, &[&[0x00][..], &lengths, &sizes].concat());
    let mut lengths = [0; 16];
    lengths[0] = 1;
    segment(0xc4, &[&[0x10][..], &lengths, &[0]].concat());
    segment(0xda, &[1, 1, 0, 0, 63, 0]);
    let mut bits = String::new();
    let mut last = 0;
    for &grey in greys {
        let value = 8 * (i32::from(grey) - 128);
        let difference = value - last;
        last = value;
        let size = 32 - difference.unsigned_abs().leading_zeros();
        bits += &format!("{size:04b}");
        if size > 0 {
            let coded = if difference > 0 { difference } else { difference + (1 << size) - 1 };
            bits += &format!("{coded:0width$b}", width = size as usize);
        }
        bits += "0";
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    for byte in bits.as_bytes().chunks(8) {
        let byte = byte.iter().fold(0u8, |byte, &bit| byte << 1 | (bit - b'0'));
        bytes.push(byte);
        if byte == 0xff {
            bytes.push(0);
        }
    }
    bytes.extend([0xff, 0xd9]);
    bytes
}

/// Computes the histogram of an image of 128 x 128 pixels.
fn naive_histogram(pixel: impl Fn(usize, usize) -> [u8; 3]) -> Vec<f32> {
    let grey = |x: i32, y: i32| {
        let [red, green, blue] = pixel(x.clamp(0, 127) as usize, y.clamp(0, 127) as usize).map(f64::from);
        ((77.0 * red + 150.0 * green + 29.0 * blue) / 256.0 + 0.5).floor()
    };
    let mut shares = vec![0.0; 256];
    for y in 0..128 {
        for x in 0..128 {
            let across: f64 = [(-1, 1.0), (0, 2.0), (1, 1.0)]
                .iter()
                .map(|&(d, w)| w * (grey(x + 1, y + d) - grey(x - 1, y + d)))
                .sum();
            let down: f64 = [(-1, 1.0), (0, 2.0), (1, 1.0)]
                .iter()
                .map(|&(d, w)| w * (grey(x + d, y + 1) - grey(x + d, y - 1)))
                .sum();
            let size = f64::hypot(across, down);
            let edge = [16.0, 48.0, 120.0].iter().filter(|&&limit| size >= limit).count();
            let [red, green, blue] = pixel(x as usize, y as usize).map(|value| usize::from(value / 64));
            shares[64 * red + 16 * green + 4 * blue + edge] += 1.0 / 16_384.0;
        }
    }
    shares
}

fn imported(setup: &Setup, folder: &Path, name: &str, is_skipping: bool) -> Result<ImportedContent> {
    let job = setup.job(32 << 20, 2);
    let mut images = Images::list(&job, &[folder.to_path_buf()], is_skipping)?;
    import_content(&setup.store, &job, name, &mut images)
}

/// Returns the vectors and the paths of all images in `inputs`.
fn rows(setup: &Setup, inputs: &[PathBuf], memory: u64, threads: usize) -> (Vec<f32>, Vec<String>) {
    let job = setup.job(memory, threads);
    let mut images = Images::list(&job, inputs, false).unwrap();
    let (mut rows, mut paths) = (Vec::new(), Vec::new());
    while let Some(batch) = images.next().unwrap() {
        rows.extend(batch.rows.chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())));
        paths.extend_from_slice(batch.paths);
    }
    drop(images);
    assert_eq!(job.budget().reserved_bytes(), 0);
    (rows, paths)
}

#[test]
fn the_vector_of_an_image_is_its_histogram() {
    let setup = Setup::new();
    let folder = setup.folder.path().join("images");
    fs::create_dir(&folder).unwrap();
    let mut random = Random(5);
    let noise: Vec<u8> = (0..128 * 128 * 4).map(|_| random.next() as u8).collect();
    let at = |channels: usize| {
        let noise = &noise;
        move |x: usize, y: usize| &noise[(y * 128 + x) * channels..][..channels]
    };
    let over_white = |value: u8, opacity: u8| {
        (f64::from(value) * f64::from(opacity) / 255.0 + 255.0 - f64::from(opacity)).round() as u8
    };
    let greys: Vec<u8> = (0..256).map(|_| random.next() as u8).collect();
    let cases: Vec<(&str, Vec<u8>, Vec<f32>)> = vec![
        (
            "a.png",
            png_of(RGB, 128, 128, &noise[..128 * 128 * 3]),
            naive_histogram(|x, y| at(3)(x, y).try_into().unwrap()),
        ),
        ("b.png", png_of(GREY, 128, 128, &noise[..128 * 128]), naive_histogram(|x, y| [at(1)(x, y)[0]; 3])),
        (
            "c.png",
            png_of(RGB_ALPHA, 128, 128, &noise),
            naive_histogram(|x, y| [0, 1, 2].map(|channel| over_white(at(4)(x, y)[channel], at(4)(x, y)[3]))),
        ),
        (
            "d.png",
            png_of(GREY_ALPHA, 128, 128, &noise[..128 * 128 * 2]),
            naive_histogram(|x, y| [over_white(at(2)(x, y)[0], at(2)(x, y)[1]); 3]),
        ),
        (
            "e.png",
            png_of(PALETTE, 128, 128, &noise[..128 * 128]),
            naive_histogram(|x, y| palette(at(1)(x, y)[0])),
        ),
        // Each square of two by two pixels has one colour, so the scaled pixel has this colour.
        (
            "f.PNG",
            png_of(
                RGB,
                256,
                256,
                &(0..256 * 256)
                    .flat_map(|place: usize| at(3)(place % 256 / 2, place / 512).to_vec())
                    .collect::<Vec<u8>>(),
            ),
            naive_histogram(|x, y| at(3)(x, y).try_into().unwrap()),
        ),
        ("g.jpg", jpeg_of(16, &greys), naive_histogram(|x, y| [greys[y / 8 * 16 + x / 8]; 3])),
    ];
    for (name, bytes, _) in &cases {
        fs::write(folder.join(name), bytes).unwrap();
    }
    fs::write(folder.join("notes.txt"), "no image").unwrap();
    fs::write(folder.join(".hidden.png"), "no image").unwrap();
    let all = [folder.clone()];
    let (found, paths) = rows(&setup, &all, 32 << 20, 1);
    for ((row, path), (name, _, expected)) in found.chunks(256).zip(&paths).zip(&cases) {
        assert_eq!(row, expected, "{name}");
        assert_eq!(Path::new(path), folder.join(name));
    }
    assert_eq!(found.len(), cases.len() * 256);
    assert_eq!(rows(&setup, &all, 128 << 20, 4), (found.clone(), paths));

    // The dataset answers queries that are images. The nearest neighbour of each image is the image itself.
    let imported = imported(&setup, &folder, "images", false).unwrap();
    assert_eq!((imported.info.vectors, imported.info.dimensions, imported.skipped), (7, 256, 0));
    let job = setup.job(32 << 20, 2);
    let vectors = Vectors::open(&setup.store, "images").unwrap();
    assert!(matches!(vectors.content(&job).unwrap(), Some(Content::Images)));
    let mut images = Images::list(&job, &[folder.join("c.png"), folder.join("g.jpg")], false).unwrap();
    let queries = content_queries(&job, &mut images).unwrap();
    drop(images);
    let options = Search { k: 1, metric: Metric::L2, ..Search::default() };
    let rows = setup.search("images", &queries, &options, (32 << 20, 2)).0;
    assert_eq!(rows, [(0, 1, 2, 0), (1, 1, 6, 0)]);
    assert_eq!(describe(&setup.store, "images").unwrap().vectors, imported.info);
    let described = describe_lists(&setup.store, &job, "images").unwrap();
    assert_eq!(described.imported_from, Some(ImportedFrom::Images));
}

#[test]
fn images_are_added_with_their_paths_and_stay_images_after_a_compaction() {
    let setup = Setup::new();
    let folder = setup.folder.path().join("images");
    fs::create_dir(&folder).unwrap();
    let write = |name: &str, colour: [u8; 3]| {
        let path = folder.join(name);
        fs::write(&path, png_of(RGB, 1, 1, &colour)).unwrap();
        path
    };
    let first = [write("a.png", [10; 3]), write("b.png", [80; 3])];
    imported(&setup, &folder, "images", false).unwrap();
    // The images take all memory but that of the columns.
    let job = setup.job(24 << 20, 1);
    let add = |name: &str, inputs: &[PathBuf]| -> Result<Changed> {
        let open = |content: Content| -> Result<Box<dyn ContentRows>> {
            assert!(matches!(content, Content::Images));
            Ok(Box::new(Images::list(&job, inputs, false)?))
        };
        let changed = add_content(&setup.store, &job, name, &open);
        assert_eq!(job.budget().reserved_bytes(), 0);
        changed
    };
    let more = [write("c.png", [150; 3]), write("d.png", [220; 3])];
    let changed = add("images", &more).unwrap();
    assert_eq!((changed.added, changed.first_id), (2, Some(2)));
    // The images are the nearest ones of themselves, and their paths are those of the files.
    let paths_of = |inputs: &[PathBuf]| -> Vec<(u64, PathBuf)> {
        let queries = content_queries(&job, &mut Images::list(&job, inputs, false).unwrap()).unwrap();
        let vectors = Vectors::open(&setup.store, "images").unwrap();
        let options = Search { k: 1, metric: Metric::L2, ..Search::default() };
        let mut columns = AnswerColumns::open(&job, &vectors, &["path".to_string()]).unwrap().unwrap();
        let mut found = Vec::new();
        let mut keep = |batch: RecordBatch| {
            let ids = batch.column(2).as_primitive::<UInt64Type>().values().to_vec();
            let paths = batch.column(4).as_string::<i32>().iter().map(|path| PathBuf::from(path.unwrap()));
            found.extend(ids.into_iter().zip(paths));
            Ok(())
        };
        search(&job, &vectors, &queries, &options, &mut |batch| columns.add(batch, &mut keep)).unwrap();
        columns.finish(&mut keep).unwrap();
        found
    };
    let all = |ids: [u64; 4], paths: &[PathBuf]| -> Vec<(u64, PathBuf)> {
        ids.into_iter().zip(paths.iter().cloned()).collect()
    };
    let wanted = [first.clone(), more.clone()].concat();
    assert_eq!(paths_of(&wanted), all([0, 1, 2, 3], &wanted));
    remove_vectors(&setup.store, &job, "images", &[1]).unwrap();
    assert_eq!(compact_vectors(&setup.store, &job, "images").unwrap().freed, 1);
    let late = write("e.png", [250, 10, 10]);
    assert_eq!(add("images", std::slice::from_ref(&late)).unwrap().first_id, Some(4));
    let left = [first[0].clone(), more[0].clone(), more[1].clone(), late];
    assert_eq!(paths_of(&left), all([0, 2, 3, 4], &left));
    // A malformed image changes nothing, and other vectors take no images.
    fs::write(folder.join("bad.png"), &fs::read(&left[0]).unwrap()[..20]).unwrap();
    let error = add("images", std::slice::from_ref(&folder)).unwrap_err().to_string();
    assert!(error.contains("bad.png"), "{error}");
    assert_eq!(Vectors::open(&setup.store, "images").unwrap().info().live(), 4);
    setup.import("plain", &Made::new(Element::F32, 256, 4, || 0.0));
    let error = add("plain", &left).unwrap_err().to_string();
    assert!(error.contains("plain: content: found none, expected images or documents"), "{error}");
}

#[test]
fn all_kinds_of_png_are_decoded() {
    let setup = Setup::new();
    let kinds = [
        (GREY, &[1, 2, 4, 8, 16][..]),
        (RGB, &[8, 16]),
        (PALETTE, &[1, 2, 4, 8]),
        (GREY_ALPHA, &[8, 16]),
        (RGB_ALPHA, &[8, 16]),
    ];
    for (color, depths) in kinds {
        for &depth in depths {
            // The sample values come from a hash, so that they vary from pixel to pixel.
            let sample = |x: usize, y: usize, channel: usize| {
                let mixed =
                    (x * 7919 + y * 104_729 + channel * 31 + 17).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                (mixed % (1 << depth)) as u16
            };
            let eight = |value: u16| match depth {
                16 => (value / 256) as u8,
                _ => (f64::from(value) * 255.0 / f64::from((1u32 << depth) - 1)) as u8,
            };
            let pixel = |x: usize, y: usize| {
                let values = [0, 1, 2, 3].map(|channel| sample(x, y, channel));
                let (rgb, opacity) = match color {
                    GREY => ([eight(values[0]); 3], 255),
                    PALETTE => (palette(values[0] as u8), 255),
                    GREY_ALPHA => ([eight(values[0]); 3], eight(values[1])),
                    RGB => ([0, 1, 2].map(|channel| eight(values[channel])), 255),
                    _ => ([0, 1, 2].map(|channel| eight(values[channel])), eight(values[3])),
                };
                let opacity = f64::from(opacity) / 255.0;
                rgb.map(|value| (f64::from(value) * opacity + 255.0 * (1.0 - opacity)).round() as u8)
            };
            let expected = naive_histogram(pixel);
            for is_interlaced in [false, true] {
                let path =
                    setup.write("kind.png", &encoded((color, depth, is_interlaced), (128, 128), sample));
                let (found, _) = rows(&setup, &[path], 32 << 20, 1);
                assert_eq!(found, expected, "colour {color} of {depth} bits, interlaced: {is_interlaced}");
            }
        }
    }
    // Some passes of small interlaced images have no pixels.
    for side in 1..6 {
        let grey = |x: usize, y: usize, _: usize| (x * 40 + y * 9) as u16;
        let [plain, interlaced] = [false, true].map(|is_interlaced| {
            let path = setup.write("small.png", &encoded((GREY, 8, is_interlaced), (side, 6 - side), grey));
            rows(&setup, &[path], 32 << 20, 1).0
        });
        assert_eq!(plain, interlaced);
    }
}

#[test]
fn truncated_images_are_refused_wherever_they_end() {
    let setup = Setup::new();
    let job = setup.job(32 << 20, 1);
    let path = setup.folder.path().join("cut.image");
    let mut random = Random(1);
    let greys: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
    let noise: Vec<u8> = (0..40 * 30 * 3).map(|_| random.next() as u8).collect();
    for bytes in [png_of(RGB, 40, 30, &noise), jpeg_of(8, &greys)] {
        fs::write(&path, &bytes).unwrap();
        assert!(Images::list(&job, std::slice::from_ref(&path), false).unwrap().next().is_ok());
        // The last four bytes of a PNG file are the checksum of its last chunk, which the decoder does not need.
        for len in 0..bytes.len() - 4 {
            fs::write(&path, &bytes[..len]).unwrap();
            let mut images = Images::list(&job, std::slice::from_ref(&path), false).unwrap();
            let error = images.next().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("cut.image: the image: found"), "{len} of {}: {error}", bytes.len());
        }
    }
}

/// Sets the width and the height in the header of a PNG file, and corrects the checksum.
fn resized(png: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut bytes = png.to_vec();
    bytes[16..24].copy_from_slice(&[width.to_be_bytes(), height.to_be_bytes()].concat());
    let mut crc = flate2::Crc::new();
    crc.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    bytes
}

#[test]
fn hostile_images_are_refused_by_name_or_skipped_and_counted() {
    let setup = Setup::new();
    let folder = setup.folder.path().join("images");
    fs::create_dir(&folder).unwrap();
    let good = png_of(RGB, 2, 2, &[200; 12]);
    let jpeg = jpeg_of(2, &[5, 200]);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let change = |place: usize, bytes: &[u8]| {
        let mut changed = jpeg.clone();
        changed[place..place + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty.png", Vec::new(), "found an empty file, expected a PNG or JPEG file"),
        ("gif.jpg", b"GIF89a".to_vec(), "found another format"),
        (
            "bomb.png",
            resized(&good, 65_535, 65_535),
            "found 65535 x 65535 pixels, expected at most 268435456",
        ),
        ("wide.png", resized(&good, 1 << 30, 1), "found 1073741824 x 1 pixels"),
        ("none.png", resized(&good, 0, 2), "found 0 x 2 pixels"),
        ("short.png", resized(&good, 2, 50), "expected a whole image"),
        ("header.png", good[..20].to_vec(), "expected a PNG header"),
        (
            "sum.png",
            [&good[..40], &[good[40] ^ 1], &good[41..]].concat(),
            "found a wrong checksum of the chunk",
        ),
        ("twelve.jpg", change(frame + 4, &[12]), "found 12 bits in a colour, expected 8"),
        ("lossless.jpg", change(frame + 1, &[0xc3]), "found a frame of kind C3"),
        ("bomb.jpg", change(frame + 5, &[255; 4]), "found 65535 x 65535 pixels"),
        (
            "frames.jpg",
            [&jpeg[..frame], &jpeg[frame..frame + 13], &jpeg[frame..]].concat(),
            "found a second frame",
        ),
    ];
    for (name, bytes, expected) in &cases {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        let error = imported(&setup, &path, "images", false).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{name}: the image: ")) && error.contains(expected),
            "{name}: {error}"
        );
        assert!(Vectors::open(&setup.store, "images").is_err());
    }
    let error = imported(&setup, &folder, "images", true).unwrap_err().to_string();
    assert!(error.contains("found 12 malformed") && error.contains("bomb.jpg"), "{error}");
    fs::write(folder.join("good.png"), &good).unwrap();
    let imported = imported(&setup, &folder, "images", true).unwrap();
    assert_eq!((imported.info.vectors, imported.skipped), (1, 12));
    assert!(imported.first_skipped.unwrap().contains("bomb.jpg"), "the first by name");
}

#[test]
fn random_damage_never_fails_otherwise_than_by_name() {
    let setup = Setup::new();
    let job = setup.job(64 << 20, 1);
    let mut random = Random(9);
    let noise: Vec<u8> = (0..16 * 16 * 3).map(|_| random.next() as u8).collect();
    let greys: Vec<u8> = (0..32).map(|_| random.next() as u8).collect();
    let path = setup.folder.path().join("damaged");
    let mut refused = 0;
    for bytes in [png_of(RGB, 16, 16, &noise), jpeg_of(8, &greys)] {
        for _ in 0..400 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random.below(4) {
                damaged[random.below(bytes.len() as u64) as usize] = random.next() as u8;
            }
            fs::write(&path, &damaged).unwrap();
            let mut images = Images::list(&job, std::slice::from_ref(&path), false).unwrap();
            if let Err(error) = images.next().map(|_| ()) {
                let told = error.to_string();
                assert!(
                    told.contains("damaged") && matches!(error, Error::BadFile { .. } | Error::Store(_)),
                    "{told}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn an_image_that_exceeds_the_budget_is_refused_with_a_budget_that_works() {
    let setup = Setup::new();
    let path = setup.write("large.png", &png_of(RGB, 3000, 2, &[7; 18_000]));
    let interlaced = {
        // The decoder of an interlaced image needs memory for all pixels. The header alone determines this memory.
        let mut bytes = resized(&fs::read(&path).unwrap(), 3000, 2000);
        bytes[28] = 1;
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        setup.write("interlaced.png", &bytes)
    };
    let first = |memory_bytes: u64, path: &PathBuf| {
        let job = setup.job(memory_bytes, 1);
        let mut images = Images::list(&job, std::slice::from_ref(path), false)?;
        images.next().map(|_| ())
    };
    first(32 << 20, &path).unwrap();
    for (path, small) in [(&path, 1 << 20), (&interlaced, 24 << 20)] {
        let Err(Error::Store(inshore_store::Error::BudgetTooSmall { smallest, .. })) = first(small, path)
        else {
            panic!("{small} bytes are too few for {}", path.display());
        };
        assert!(smallest > small);
        let outcome = first(smallest, path);
        assert!(!matches!(outcome, Err(Error::Store(_))), "{smallest}: {outcome:?}");
    }
}

#[test]
fn folders_without_images_and_missing_files_are_refused() {
    let setup = Setup::new();
    let folder = setup.folder.path().join("empty");
    fs::create_dir(&folder).unwrap();
    let error = imported(&setup, &folder, "images", true).unwrap_err().to_string();
    assert!(error.contains("empty: the folder: found no PNG or JPEG files"), "{error}");
    let error = imported(&setup, &folder.join("absent.png"), "images", true).unwrap_err().to_string();
    assert!(error.contains("absent.png") && error.contains("No such file"), "{error}");
}
