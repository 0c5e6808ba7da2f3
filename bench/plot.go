package main

import (
	"cmp"
	"errors"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// plot draws throughput and p99 against connections into dir, for a scenario that
// was measured at several numbers of them.
func (r result) plot(dir string) error {
	if len(r.Points) < 2 {
		return nil
	}
	for _, c := range []struct {
		file, unit string
		log        bool
		of         func(sample) float64
	}{
		{"throughput", "requests a second", false, func(m sample) float64 { return m.Rate }},
		{"p99", "p99, milliseconds (logarithmic)", true, func(m sample) float64 { return m.P99 }},
	} {
		p := chart{title: r.Title + ": " + c.unit, log: c.log}
		for i, at := range r.Points {
			p.x = append(p.x, strconv.Itoa(at.Connections))
			for j, row := range at.Rows {
				if i == 0 {
					p.lines = append(p.lines, line{name: row.Name})
				}
				p.lines[j].y = append(p.lines[j].y, c.of(row.Median))
			}
		}
		f, err := os.Create(filepath.Join(dir, r.Name+"-"+c.file+".png"))
		if err != nil {
			return err
		}
		if err := errors.Join(p.draw(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// chart is a chart of lines over a few places on the x axis, which are equally
// far from each other: numbers of connections grow by factors.
type chart struct {
	title string
	x     []string
	log   bool // of the y axis
	lines []line
}

type line struct {
	name string
	y    []float64 // as many as the chart's x, all positive
}

// The size of a chart, in pixels.
const (
	chartWidth, chartHeight       = 1100, 560
	leftEdge, rightEdge           = 90, 860
	topEdge, bottomEdge           = 60, 490
	legend                        = rightEdge + 40
	lineWidth, gridWidth, dotSize = 3.0, 1.0, 9.0
)

// palette is Okabe and Ito's, whose colours can be told apart by those who see
// fewer of them: https://jfly.uni-koeln.de/color/
var palette = []color.RGBA{
	{0, 0, 0, 255}, {0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255},
	{204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255}, {140, 140, 140, 255},
}

// draw writes the chart as PNG.
func (c chart) draw(w io.Writer) error {
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return err
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: 16, DPI: 72, Hinting: font.HintingFull})
	if err != nil {
		return err
	}
	p := paper{Image: image.NewRGBA(image.Rect(0, 0, chartWidth, chartHeight)), face: face}
	draw.Draw(p, p.Bounds(), image.White, image.Point{}, draw.Src)
	black, grey := palette[0], color.RGBA{225, 225, 225, 255}

	p.text(leftEdge, 35, c.title, black)
	scale := c.scale()
	for _, mark := range scale.marks {
		y := scale.place(mark)
		p.stroke(leftEdge, y, rightEdge, y, gridWidth, grey)
		label := strconv.FormatFloat(mark, 'g', 6, 64)
		p.text(leftEdge-10-p.width(label), y+5, label, black)
	}
	place := func(i int) float64 {
		return leftEdge + (rightEdge-leftEdge)*(float64(i)+0.5)/float64(len(c.x))
	}
	for i, label := range c.x {
		p.text(place(i)-p.width(label)/2, bottomEdge+25, label, black)
	}
	p.text((leftEdge+rightEdge)/2-p.width("connections")/2, bottomEdge+52, "connections", black)
	p.stroke(leftEdge, bottomEdge, rightEdge, bottomEdge, gridWidth, black)
	for n, l := range c.lines {
		ink := palette[n%len(palette)]
		for i, v := range l.y {
			x, y := place(i), scale.place(v)
			if i > 0 {
				p.stroke(place(i-1), scale.place(l.y[i-1]), x, y, lineWidth, ink)
			}
			p.stroke(x-dotSize/2, y, x+dotSize/2, y, dotSize, ink)
		}
		y := float64(topEdge + 20 + 28*n)
		p.stroke(legend, y, legend+30, y, lineWidth, ink)
		p.text(legend+40, y+5, l.name, black)
	}
	return png.Encode(w, p)
}

// axis is the y axis.
type axis struct {
	log         bool
	least, most float64
	marks       []float64
}

// place is where a value is, in pixels from the top.
func (a axis) place(v float64) float64 {
	least, most := a.least, a.most
	if a.log {
		v, least, most = math.Log10(v), math.Log10(least), math.Log10(most)
	}
	return bottomEdge - (bottomEdge-topEdge)*(v-least)/(most-least)
}

// scale returns an axis that all lines fit on, from one round number to another:
// from 0 in equal steps, or, where it is logarithmic, by 1, 2, 5 and 10.
func (c chart) scale() axis {
	least, most := math.Inf(1), 0.0
	for _, l := range c.lines {
		for _, v := range l.y {
			least, most = min(least, v), max(most, v)
		}
	}
	most = cmp.Or(most, 1)
	if c.log {
		a := axis{log: true}
		for e := math.Floor(math.Log10(least)); len(a.marks) < 2 || a.most < most; e++ {
			for _, digit := range []float64{1, 2, 5} {
				v := digit * math.Pow(10, e)
				if v <= least { // the last of them is where the axis begins
					a.marks = nil
				}
				if a.most < most || len(a.marks) < 2 {
					a.marks, a.most = append(a.marks, v), v
				}
			}
		}
		a.least = a.marks[0]
		return a
	}
	step := math.Pow10(int(math.Floor(math.Log10(most))))
	switch {
	case most/step < 2:
		step /= 5
	case most/step < 5:
		step /= 2
	}
	a := axis{most: math.Ceil(most/step) * step}
	for v := 0.0; v <= a.most*1.001; v += step {
		a.marks = append(a.marks, v)
	}
	return a
}

// paper is what a chart is drawn on.
type paper struct {
	draw.Image
	face font.Face
}

// text writes s with its base line at y.
func (p paper) text(x, y float64, s string, ink color.Color) {
	d := font.Drawer{Dst: p, Src: image.NewUniform(ink), Face: p.face, Dot: fixed.P(int(x), int(y))}
	d.DrawString(s)
}

func (p paper) width(s string) float64 { return float64(font.MeasureString(p.face, s)) / 64 }

// stroke draws a straight line.
func (p paper) stroke(x0, y0, x1, y1, width float64, ink color.Color) {
	length := math.Hypot(x1-x0, y1-y0)
	dx, dy := -(y1-y0)/length*width/2, (x1-x0)/length*width/2
	b := p.Bounds()
	z := vector.NewRasterizer(b.Dx(), b.Dy())
	at := func(x, y float64) (float32, float32) { return float32(x), float32(y) }
	z.MoveTo(at(x0+dx, y0+dy))
	z.LineTo(at(x1+dx, y1+dy))
	z.LineTo(at(x1-dx, y1-dy))
	z.LineTo(at(x0-dx, y0-dy))
	z.ClosePath()
	z.Draw(p, b, image.NewUniform(ink), image.Point{})
}
