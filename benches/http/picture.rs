//! Pictures of what was measured.

use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// The width and height, in pixels.
const SIZE: (u32, u32) = (800, 420);

/// The colours of the lines, which also those tell apart who see no red or no green.
const COLOURS: [RGBColor; 4] =
    [RGBColor(90, 90, 90), RGBColor(230, 159, 0), RGBColor(213, 94, 0), RGBColor(0, 114, 178)];

/// A line of a picture.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// In order, from the left to the right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a picture says about its lines.
pub(crate) struct Picture {
    pub(crate) title: &'static str,
    pub(crate) across: &'static str,
    pub(crate) up: &'static str,
    /// Whether equal distances upwards are equal ratios.
    pub(crate) logarithmic: bool,
}

impl Picture {
    /// Draws the lines into an SVG file, and says where it is.
    pub(crate) fn draw(&self, lines: &[Line], file: &Path) {
        let points = || lines.iter().flat_map(|line| &line.points);
        let right = points().map(|point| point.0).fold(0.0, f64::max);
        let top = points().map(|point| point.1).fold(0.0, f64::max) * 1.1;
        let bottom = points().map(|point| point.1).fold(f64::INFINITY, f64::min) / 1.5;
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        root.fill(&WHITE).unwrap();
        let mut chart = ChartBuilder::on(&root);
        chart.caption(self.title, ("sans-serif", 18)).margin(12).margin_right(32);
        chart.x_label_area_size(44).y_label_area_size(64);
        if self.logarithmic {
            let upwards = (bottom..top).log_scale();
            self.draw_on(&mut chart.build_cartesian_2d(0.0..right, upwards).unwrap(), lines);
        } else {
            self.draw_on(&mut chart.build_cartesian_2d(0.0..right, 0.0..top).unwrap(), lines);
        }
        root.present().unwrap();
        println!("picture: {}", file.display());
    }

    fn draw_on<'a, 'b: 'a, Y>(&self, chart: &mut Chart<'a, 'b, Y>, lines: &[Line])
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mesh = &mut chart.configure_mesh();
        mesh.x_desc(self.across).y_desc(self.up).label_style(("sans-serif", 13));
        mesh.x_label_formatter(&|number| format!("{number:.0}"));
        mesh.light_line_style(TRANSPARENT).draw().unwrap();
        for (line, colour) in lines.iter().zip(COLOURS) {
            let style = colour.stroke_width(2);
            let series = LineSeries::new(line.points.iter().copied(), style);
            let drawn = chart.draw_series(series).unwrap().label(line.name);
            drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        let labels = &mut chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperLeft).label_font(("sans-serif", 13));
        labels.background_style(WHITE).border_style(BLACK.mix(0.3)).draw().unwrap();
    }
}

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;
