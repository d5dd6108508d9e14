package manifest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

type part struct {
	Name  string            `json:"name" help:"Its name." required:"yes" example:"a"`
	Color string            `json:"color" help:"Its color." oneof:"red green"`
	Tags  map[string]string `json:"tags" help:"Tags."`
	Count int               `json:"count" help:"How many."`
}

type span time.Duration

func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = span(d)
	return err
}

func (s span) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

type document struct {
	Title string         `json:"title" help:"The title." required:"yes" example:"t"`
	Body  string         `json:"body" help:"Text." lines:"yes"`
	Parts []part         `json:"parts" help:"The parts."`
	Main  *part          `json:"main" help:"The main part."`
	On    *bool          `json:"on" help:"A switch." example:"true"`
	Every span           `json:"every" help:"How often." example:"1h"`
	Words []string       `json:"words" help:"Words." oneof:"one two"`
	Free  map[string]any `json:"free" help:"Anything."`
}

func TestReadTellsEveryFaultWithItsPlace(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"unknown field":         {"title: x\nbodi: y", "f:2:1: bodi: no such field; did you mean body?"},
		"unknown, nothing near": {"title: x\nzzzzzz: y", "f:2:1: zzzzzz: no such field; there are title, body, parts, main, on, every, words, free"},
		"nested":                {"title: x\nparts:\n- name: a\n- nam: b\n", "f:4:3: parts[1].nam: no such field; did you mean name?\nf:4:3: parts[1].name: is missing; want one such as a"},
		"missing":               {"body: x", "f:1:1: title: is missing; want one such as t"},
		"number for string":     {"title: 1.10", `f:1:1: title: "1.10": want a string; write "1.10"`},
		"bool for string":       {"title: yes please\nmain: {name: true}", `f:2:8: main.name: "true": want a string; write "true"`},
		"string for number":     {"title: x\nmain: {name: a, count: many}", `f:2:17: main.count: "many": want a whole number`},
		"float for number":      {"title: x\nmain: {name: a, count: 1.5}", `f:2:17: main.count: "1.5": want a whole number`},
		"huge number":           {"title: x\nmain: {name: a, count: 99999999999999999999}", `f:2:17: main.count: "99999999999999999999": want a whole number`},
		"string for bool":       {"title: x\n\"on\": maybe", `f:2:1: on: "maybe": want true or false`},
		"scalar for list":       {"title: x\nparts: a", `f:2:1: parts: "a": want a list`},
		"list for mapping":      {"title: x\nmain: [a]", "f:2:1: main: a list: want a mapping"},
		"mapping for string":    {"title: {a: b}", "f:1:1: title: a mapping: want a string"},
		"enum":                  {"title: x\nmain: {name: a, color: gren}", `f:2:17: main.color: "gren": want one of red, green; did you mean green?`},
		"enum in list":          {"title: x\nwords: [one, twoo]", `f:2:14: words[1]: "twoo": want one of one, two; did you mean two?`},
		"text":                  {"title: x\nevery: often", `f:2:1: every: time: invalid duration "often"`},
		"required and null":     {"title: null", "f:1:1: title: is empty; want one such as t"},
		"required and empty":    {"title: x\nmain: {name: \"\"}", "f:2:8: main.name: is empty; want one such as a"},
		"null in a list":        {"title: x\nparts: [null]", "f:2:9: parts[0]: is empty; want a value, or leave it out"},
		"twice":                 {"title: x\ntitle: y", "f:2:1: title: is there twice; leave one out"},
		"twice in map":          {"title: x\nmain: {name: a, tags: {k: v, k: w}}", "f:2:30: main.tags.k: is there twice; leave one out"},
		"line break":            {"title: \"a\\nb\"", `f:1:1: title: "a\nb": want no line break and no other control character in it`},
		"line break in map":     {"title: x\nmain: {name: a, tags: {k: \"v\\nw\"}}", `f:2:24: main.tags.k: "v\nw": want no line break and no other control character in it`},
		"syntax":                {"title: x\nbody: [a\nfoo: b", "f:2:1: did not find expected ',' or ']'; mind quotes, brackets and indentation, there and in the line above"},
		"tab":                   {"title: x\nmain:\n\tname: a", "f:3:2: found character that cannot start any token; mind quotes, brackets and indentation, there and in the line above"},
		"empty":                 {"# nothing\n", "f:1:1: the document is empty; want apiVersion, kind and what follows from them"},
		"three documents":       {"title: x\n---\n---\ntitle: y", "f:3:1: a second document begins; want one in a file"},
		"two documents":         {"title: x\n---\ntitle: y", "f:2:1: a second document begins; want one in a file"},
		"scalar document":       {"hello", `f:1:1: "hello": want a mapping`},
		"several": {
			"title: [x]\nparts:\n- name: a\n  count: b\nnope: 1",
			"f:1:1: title: a list: want a string\nf:4:3: parts[0].count: \"b\": want a whole number\n" +
				"f:5:1: nope: no such field; there are title, body, parts, main, on, every, words, free",
		},
		"json": {"{\n\t\"title\": \"x\",\n\t\"boby\": 1\n}", "f:3:2: boby: no such field; did you mean body?"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var doc document
			err := Read("f", []byte(c.in), &doc).Err()
			if err == nil {
				t.Fatal("no fault")
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Error(diff)
			}
			if !errors.Is(err, errs.Invalid) {
				t.Error("is not of kind Invalid")
			}
		})
	}
}

func TestReadTakesWhatIsRight(t *testing.T) {
	yes := true
	want := document{
		Title: "x", Body: "a\nb\n", On: &yes, Every: span(time.Hour), Words: []string{"one"},
		Parts: []part{{Name: "a", Color: "red", Count: 0o17, Tags: map[string]string{"k.l": "v"}}},
		Main:  &part{Name: "a"},
		Free:  map[string]any{"a": 1, "b": []any{"c", true}},
	}
	for name, text := range map[string]string{
		"yaml": "title: x\nbody: |\n  a\n  b\nparts:\n- &p\n  name: a\n  color: red\n  count: 0o17\n  tags: {k.l: v}\n" +
			"main: {name: a, color: null}\non: true\nevery: 1h\nwords: [one]\nfree: {a: 1, b: [c, true]}\n",
		"separators": "---\ntitle: x\nbody: \"a\\nb\\n\"\nparts: [{name: a, color: red, count: 15, tags: {k.l: v}}]\n" +
			"main: {name: a}\non: true\nevery: 1h\nwords: [one]\nfree: {a: 1, b: [c, true]}\n---\n# nothing\n...\n",
		"json": `{"title": "x", "body": "a\nb\n", "parts": [{"name": "a", "color": "red", "count": 15, "tags": {"k.l": "v"}}],
			"main": {"name": "a"}, "on": true, "every": "1h", "words": ["one"], "free": {"a": 1, "b": ["c", true]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var got document
			if err := Read("f", []byte(text), &got).Err(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

type base struct {
	Name string `json:"name" help:"Its name." required:"yes"`
	Size int    `json:"size" help:"Its size."`
}

type color string

func (c *color) UnmarshalText(text []byte) error {
	*c = color(strings.ToLower(string(text)))
	if *c != "red" && *c != "green" {
		return fmt.Errorf("unknown color: %q", text)
	}
	return nil
}

type derived struct {
	base
	Colors *[]color          `json:"colors" help:"Colors." oneof:"red green"`
	Tags   map[string]string `json:"tags" help:"Tags."`
	Text   string            `json:"text" help:"A text."`
	On     bool              `json:"on" help:"A switch."`
}

// TestEmbeddedFieldsAreFields: the reader, the schema, the sample and the reference treat embedded
// fields as fields.
func TestEmbeddedFieldsAreFields(t *testing.T) {
	var got derived
	if err := Read("f", []byte("name: a\nsize: 3\ncolors: []\n"), &got).Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(derived{base: base{"a", 3}, Colors: &[]color{}}, got, cmp.AllowUnexported(derived{})); diff != "" {
		t.Error(diff)
	}
	got = derived{base: base{Size: 7}}
	for what, text := range map[string]string{
		"schema": string(Schema("x", &got)), "sample": Sample(&got), "reference": Reference(&got),
	} {
		for _, want := range []string{"name", "size", "colors", "7"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s lacks %s:\n%s", what, want, text)
			}
		}
	}
	err := Read("f", []byte("size: 1\ncolors: [RED, blue, gren]\nsise: 1"), &got).Err()
	want := "f:1:1: name: is missing; want a string\n" + `f:2:15: colors[1]: unknown color: "blue"; want one of red, green` + "\n" +
		`f:2:21: colors[2]: unknown color: "gren"; want one of red, green; did you mean green?` + "\n" +
		"f:3:1: sise: no such field; did you mean size?"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant:\n%s", err, want)
	}
}

func TestMergeKeys(t *testing.T) {
	text := "title: x\nmain: &m {name: a, color: red, count: 1, tags: &t {a: b}}\n" +
		"parts:\n- <<: *m\n  name: b\n- {<<: [{count: 5}, *m], name: c, tags: {<<: *t, c: d}}\n"
	var got document
	if err := Read("f", []byte(text), &got).Err(); err != nil {
		t.Fatal(err)
	}
	want := []part{
		{Name: "b", Color: "red", Count: 1, Tags: map[string]string{"a": "b"}},
		{Name: "c", Color: "red", Count: 5, Tags: map[string]string{"a": "b", "c": "d"}},
	}
	if diff := cmp.Diff(want, got.Parts); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"title: x\nmain: &m {name: a, <<: *m}":       "f:2:1: main: merges itself; leave that out",
		"title: x\nmain: {name: a, <<: b}":           `f:2:1: main: "b": << wants a mapping or a list of them`,
		"title: x\nmain: {name: a, <<: {counts: 1}}": "f:2:22: main.counts: no such field; did you mean count?",
	} {
		if err := Read("f", []byte(text), &document{}).Err(); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}

func TestReadPlain(t *testing.T) {
	text := "name: 1.10\ntags: {a: true, b: 010, c: \"x\"}\ntext: yes\non: yes\n"
	var got derived
	if err := ReadPlain("f", []byte(text), &got).Err(); err != nil {
		t.Fatal(err)
	}
	want := derived{base: base{Name: "1.10"}, Tags: map[string]string{"a": "true", "b": "010", "c": "x"}, Text: "yes", On: true}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(derived{})); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"name: a\non: \"yes\"":  `f:2:1: on: "yes": want true or false`,
		"name: a\nsize: \"3\"":  `f:2:1: size: "3": want a whole number`,
		"name: [a]":             "f:1:1: name: a list: want a string",
		"name: a\ntext: {a: b}": "f:2:1: text: a mapping: want a string",
	} {
		if err := ReadPlain("f", []byte(text), &derived{}).Err(); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}

func TestMeta(t *testing.T) {
	for text, want := range map[string][3]string{
		"kind: K\nmore: [a\nfoo: b":          {"", "", "f:2:1: did not find expected ',' or ']'; mind quotes, brackets and indentation, there and in the line above"},
		"kind: K\napiVersion: a/v1\nmore: 1": {"a/v1", "K", ""},
		"- kind: K":                          {"", "", "f:1:1: a list: want a mapping"},
		"":                                   {"", "", "f:1:1: the document is empty; want apiVersion, kind and what follows from them"},
		"{\"kind\": \"K\"}":                  {"", "K", ""},
	} {
		version, kind, r := Meta("f", []byte(text))
		told := ""
		if err := r.Err(); err != nil {
			told = err.Error()
		}
		if diff := cmp.Diff(want, [3]string{version, kind, told}); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
	_, _, r := Meta("f", []byte("a: 1\nkind: K\n"))
	r.Fault("kind", "is wrong")
	if want := "f:2:1: kind: is wrong"; r.Err() == nil || r.Err().Error() != want {
		t.Errorf("%v; want %s", r.Err(), want)
	}
}

// TestAliasesCannotExplode: nine levels of nine aliases would be 387 million values.
func TestAliasesCannotExplode(t *testing.T) {
	var b strings.Builder
	b.WriteString("title: x\nfree:\n  a0: &a0 [x]\n")
	for i := 1; i < 10; i++ {
		prev := string(rune('0' + i - 1))
		b.WriteString("  a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat("*a"+prev+", ", 9) + "]\n")
	}
	var doc document
	if err := Read("f", []byte(b.String()), &doc).Err(); err == nil {
		t.Error("was taken")
	}
	var parts document
	text := "title: x\nparts: [" + strings.Repeat("{name: a},", maxNodes) + "]"
	if err := Read("f", []byte(text), &parts).Err(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a document with too many values: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("title: x\nparts: [{name: a}]\n")
	f.Add("{\"title\": 1}")
	f.Add("a: &a [*a]")
	f.Add("title: x\nmain: &m {<<: [*m, {name: a}]}")
	f.Fuzz(func(_ *testing.T, text string) {
		var doc document
		_ = Read("f", []byte(text), &doc).Err() // must not panic, hang or run out
	})
}
