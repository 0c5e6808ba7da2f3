// Package dashboard has what an on-call person looks at, as a table of panels,
// and turns it into the file that Grafana reads. A panel is a few lines here and
// fifty there; ids and places follow from the order.
//
// The file is deploy/grafana/dashboards/intentd.json. It is made anew by
//
//	go test ./internal/metrics -run TestDashboard -update
package dashboard

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Selector stands in a query for the replicas that the reader has chosen: it is
// written {@}, or {@, code="200"}.
const Selector = `job="intentd", instance=~"$instance"`

// Instances is the query behind the variable $instance. It names those as well
// that do not answer.
const Instances = `up{job="intentd"}`

// kind is how a panel shows what it asks for, as Grafana names it.
type kind string

const (
	stat     kind = "stat"
	lines    kind = "timeseries"
	heatmap  kind = "heatmap"
	timeline kind = "state-timeline"
	table    kind = "table"
)

// Query is a question of a panel's.
type Query struct {
	// PromQL has the macros of Grafana's in it ($instance, $__rate_interval).
	PromQL string
	// Legend is the name of each series; {{label}} stands for a label's value.
	Legend string
}

// Panel is a field of the dashboard.
type Panel struct {
	Title string
	// Description says what is seen, and from when on it is bad.
	Description string
	Queries     []Query

	kind   kind
	unit   string // as Grafana names it
	width  int    // of 24 columns
	height int
	// steps colour the values from each one on, and are drawn as lines. The lowest
	// colour is green, unless less is worse.
	steps []step
	low   string // the lowest colour, if not green
	// names are those of the values 0, 1 and so on.
	names []string
	most  float64 // the highest value there can be
	// nothing is shown where there is no series.
	nothing string
}

// step is the value from which a colour holds.
type step struct {
	from  float64
	color string
}

// Row is a heading, and the panels under it.
type Row struct {
	Title  string
	Panels []Panel
}

func q(promQL, legend string) Query {
	return Query{PromQL: strings.ReplaceAll(promQL, "{@", "{"+Selector), Legend: legend}
}

// The parts of Grafana's model that are used. Its own description is
// https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/
// and, as types, the npm package @grafana/schema.
type (
	object = map[string]any

	place struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	target struct {
		RefID        string `json:"refId"`
		Datasource   source `json:"datasource"`
		EditorMode   string `json:"editorMode"`
		Expr         string `json:"expr"`
		Format       string `json:"format"`
		Instant      bool   `json:"instant"`
		Range        bool   `json:"range"`
		LegendFormat string `json:"legendFormat"`
	}
	source struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	panel struct {
		ID              int      `json:"id"`
		Type            string   `json:"type"`
		Title           string   `json:"title"`
		Description     string   `json:"description,omitempty"`
		GridPos         place    `json:"gridPos"`
		Datasource      *source  `json:"datasource,omitempty"`
		FieldConfig     object   `json:"fieldConfig,omitempty"`
		Options         object   `json:"options,omitempty"`
		Targets         []target `json:"targets,omitempty"`
		Transformations []object `json:"transformations,omitempty"`
		Collapsed       *bool    `json:"collapsed,omitempty"`
		Panels          []panel  `json:"panels,omitzero"` // of a row that is folded
	}
	board struct {
		UID           string   `json:"uid"`
		Title         string   `json:"title"`
		Description   string   `json:"description"`
		Tags          []string `json:"tags"`
		SchemaVersion int      `json:"schemaVersion"`
		Version       int      `json:"version"`
		Editable      bool     `json:"editable"`
		GraphTooltip  int      `json:"graphTooltip"`
		Timezone      string   `json:"timezone"`
		Refresh       string   `json:"refresh"`
		Time          object   `json:"time"`
		Templating    object   `json:"templating"`
		Annotations   object   `json:"annotations"`
		Panels        []panel  `json:"panels"`
	}
)

// prometheus is whatever data source the reader has chosen.
var prometheus = source{"prometheus", "${datasource}"}

const columns = 24

// JSON returns the dashboard as Grafana reads it, ending in a line feed.
func JSON() []byte {
	b := board{
		UID: "intentd", Title: "intentd",
		Description: "What to look at when it is night: from top to bottom, is it up and right, who asks for what, " +
			"and what is it short of. docs/operations.md says what to do.",
		Tags:          []string{"intentd"},
		SchemaVersion: 41, Version: 1, Editable: true,
		GraphTooltip: 1, // one crosshair in all panels
		Timezone:     "browser", Refresh: "30s",
		Time:        object{"from": "now-1h", "to": "now"},
		Templating:  object{"list": variables()},
		Annotations: object{"list": annotations()},
	}
	y := 0
	for _, r := range Rows {
		folded := false
		b.Panels = append(b.Panels, panel{
			ID: len(b.Panels) + 1, Type: "row", Title: r.Title, GridPos: place{H: 1, W: columns, Y: y},
			Collapsed: &folded, Panels: []panel{},
		})
		y++
		x, high := 0, 0
		for _, p := range r.Panels {
			if x+p.width > columns {
				x, y, high = 0, y+high, 0
			}
			b.Panels = append(b.Panels, p.model(len(b.Panels)+1, place{p.height, p.width, x, y}))
			x, high = x+p.width, max(high, p.height)
		}
		y += high
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(b); err != nil {
		panic(err) // nothing in it can not be written
	}
	return text.Bytes()
}

func variables() []object {
	return []object{
		{
			"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
			"refresh": 1, "hide": 0, "multi": false, "includeAll": false, "options": []object{},
		},
		{
			"name": "instance", "label": "Replica", "type": "query", "datasource": prometheus,
			"definition": "label_values(" + Instances + ", instance)",
			"query":      object{"query": "label_values(" + Instances + ", instance)", "refId": "instance", "qryType": 1},
			"refresh":    2, // whenever the time range changes
			"sort":       1, "hide": 0, "multi": true, "includeAll": true, "allValue": ".*",
			"current": object{"text": []string{"All"}, "value": []string{"$__all"}}, "options": []object{},
		},
	}
}

func annotations() []object {
	return []object{
		{
			"name": "Alerts", "enable": true, "iconColor": "red", "datasource": prometheus,
			"expr": Firing, "titleFormat": "{{alertname}}", "textFormat": "{{instance}} {{task}}", "step": "30s",
		},
		{
			"name": "Starts", "enable": true, "iconColor": "blue", "datasource": prometheus,
			"expr": Starts, "titleFormat": "start", "textFormat": "{{instance}}", "step": "30s",
		},
	}
}

func (p Panel) model(id int, at place) panel {
	m := panel{
		ID: id, Type: string(p.kind), Title: p.Title, Description: p.Description, GridPos: at, Datasource: &prometheus,
		FieldConfig: object{"defaults": p.defaults(), "overrides": []object{}},
		Options:     p.options(),
	}
	for i, query := range p.Queries {
		t := target{
			RefID: string(rune('A' + i)), Datasource: prometheus, EditorMode: "code", Expr: query.PromQL,
			Format: "time_series", Range: true, LegendFormat: query.Legend,
		}
		switch p.kind {
		case table:
			t.Format, t.Instant, t.Range = "table", true, false
		case heatmap:
			t.Format = "heatmap"
		}
		m.Targets = append(m.Targets, t)
	}
	if p.kind == table {
		m.Transformations = []object{{"id": "organize", "options": object{"excludeByName": object{"Time": true}, "renameByName": object{"Value": "replicas"}}}}
	}
	return m
}

// defaults are how values are shown.
func (p Panel) defaults() object {
	low := p.low
	if low == "" {
		low = "green"
	}
	steps := []object{{"color": low, "value": nil}}
	for _, s := range p.steps {
		steps = append(steps, object{"color": s.color, "value": s.from})
	}
	d := object{"unit": p.unit, "thresholds": object{"mode": "absolute", "steps": steps}}
	if p.nothing != "" {
		d["noValue"] = p.nothing
	}
	if p.most != 0 {
		d["max"] = p.most
	}
	switch p.kind {
	case lines:
		style := "off"
		if len(p.steps) > 0 {
			style = "dashed"
		}
		d["min"] = 0
		d["color"] = object{"mode": "palette-classic"}
		d["custom"] = object{
			"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "axisSoftMin": 0,
			"thresholdsStyle": object{"mode": style}, "stacking": object{"mode": "none", "group": "A"},
		}
	case timeline:
		d["color"] = object{"mode": "thresholds"}
		d["custom"] = object{"lineWidth": 0, "fillOpacity": 80}
		texts := make(object)
		for i, name := range p.names {
			texts[strconv.Itoa(i)] = object{"index": i, "text": name}
		}
		d["mappings"] = []object{{"type": "value", "options": texts}}
	case stat:
		d["color"] = object{"mode": "thresholds"}
	}
	return d
}

func (p Panel) options() object {
	legend := object{"showLegend": true, "displayMode": "table", "placement": "bottom", "calcs": []string{"lastNotNull", "max"}}
	switch p.kind {
	case stat:
		return object{
			"colorMode": "background", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto", "wideLayout": true,
			"showPercentChange": false, "percentChangeColorMode": "standard",
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
		}
	case timeline:
		return object{
			"mergeValues": true, "showValue": "never", "alignValue": "left", "rowHeight": 0.9, "tooltip": object{"mode": "single", "sort": "none"},
			"legend": object{"showLegend": false, "displayMode": "list", "placement": "bottom", "calcs": []string{}},
		}
	case heatmap:
		return object{
			"calculate": false, "cellGap": 1, "showValue": "never", "legend": object{"show": true}, "rowsFrame": object{"layout": "auto"},
			"color": object{
				"mode": "scheme", "scheme": "Oranges", "steps": 64, "reverse": false, "exponent": 0.5, "fill": "dark-orange",
			},
			"cellValues": object{"unit": p.unit}, "yAxis": object{"axisPlacement": "left", "unit": "short", "reverse": false},
			"tooltip":      object{"mode": "single", "yHistogram": false, "showColorScale": false},
			"filterValues": object{"le": 1e-9}, "exemplars": object{"color": "rgba(255,0,255,0.7)"},
		}
	case table:
		return object{"showHeader": true, "cellHeight": "sm", "frameIndex": 0}
	default:
		return object{"legend": legend, "tooltip": object{"mode": "multi", "sort": "desc"}}
	}
}

// Panels returns the panels of all rows.
func Panels() (all []Panel) {
	for _, r := range Rows {
		all = slices.Concat(all, r.Panels)
	}
	return all
}
