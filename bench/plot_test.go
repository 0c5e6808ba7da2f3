package main

import (
	"bytes"
	"image/png"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChart_Scale(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		log  bool
		y    []float64
		want []float64
	}{
		{"Thousands", false, []float64{100, 4200}, []float64{0, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500}},
		{"Tens", false, []float64{70}, []float64{0, 10, 20, 30, 40, 50, 60, 70}},
		{"Logarithmic", true, []float64{0.3, 7}, []float64{0.2, 0.5, 1, 2, 5, 10}},
		{"LogarithmicOne", true, []float64{2}, []float64{2, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := chart{log: c.log, lines: []line{{y: c.y}}}.scale()
			if diff := cmp.Diff(c.want, a.marks, cmp.Comparer(func(x, y float64) bool { return x-y < 1e-9 && y-x < 1e-9 })); diff != "" {
				t.Errorf("marks (-want +got):\n%s", diff)
			}
			if top, bottom := a.place(a.most), a.place(a.least); math.Round(top) != topEdge || math.Round(bottom) != bottomEdge {
				t.Errorf("the axis goes from %v up to %v, want from %v to %v", bottom, top, bottomEdge, topEdge)
			}
			for _, v := range c.y {
				if y := a.place(v); y < topEdge || y > bottomEdge {
					t.Errorf("%v is placed at %v, outside the chart", v, y)
				}
			}
		})
	}
}

func TestChart_Draw(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	c := chart{title: "t", x: []string{"1", "8"}, lines: []line{{"a", []float64{1, 1}}, {"b", []float64{2, 2}}}}
	if err := c.draw(&b); err != nil {
		t.Fatal(err)
	}
	m, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	scale := c.scale()
	for n, l := range c.lines {
		r, g, bl, _ := m.At((leftEdge+rightEdge)/2, int(scale.place(l.y[0]))).RGBA()
		want := palette[n]
		if uint8(r>>8) != want.R || uint8(g>>8) != want.G || uint8(bl>>8) != want.B {
			t.Errorf("line %s is not where it should be: %d %d %d", l.name, r>>8, g>>8, bl>>8)
		}
	}
}
