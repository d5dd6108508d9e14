package main

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/docs/markdown"
)

const root = "../../.."

// TestWordsAreSortedAndUsed: each word of words.txt is in a text that is checked.
func TestWordsAreSortedAndUsed(t *testing.T) {
	own, err := readWords(wordsText)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := all(root)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(unknown(texts, own)); n < 2500 {
		t.Errorf("the texts have %d words: does the test read them?", n)
	}
	for _, word := range own.unused() {
		t.Errorf("words.txt: %q is in no text: remove it", word)
	}
}

func TestReadWords(t *testing.T) {
	for text, fault := range map[string]string{
		"# a comment\n\nCNI\ncni\npod\nZRAM\n": "",
		"pod\nCNI\n":                           `"CNI" stands after "pod"`,
		"cni\nCNI\n":                           `"CNI" stands after "cni"`,
		"CNI\nCNI\n":                           `"CNI" stands after "CNI"`,
	} {
		if _, err := readWords(text); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: %v, want %q", text, err, fault)
		}
	}
	own, err := readWords("CNI\nkubelet\nopenapi\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"CNI", "CNIs", "kubelet", "Kubelets"} {
		if !own.has(word) {
			t.Errorf("%s is not in the list", word)
		}
	}
	for _, word := range []string{"cni", "KUBELET", "kubelt"} {
		if own.has(word) {
			t.Errorf("%s is in the list", word)
		}
	}
	if unused := own.unused(); !slices.Equal(unused, []string{"openapi"}) {
		t.Errorf("unused are %q", unused)
	}
}

// TestWords: what people read as words is checked, and names are not.
func TestWords(t *testing.T) {
	for text, want := range map[string][]string{
		"The `cntainr of\na` pod.":                            {"The", "pod"},
		"[a lnk](docs/pge.md) of https://exmple.org/":         {"lnk", "of"},
		"see docs/pge.md, a_key, key=vlaue, v1.2, --flg, /et": {"see"},
		"it doesn't, the kubelet's \"end\".":                  {"it", "doesn't", "the", "kubelet", "end"},
		"**bold** plain; (kube-proxy)":                        {"bold", "plain", "kube-proxy"},
		"<p>one</p> {{ $labels.x }}&nbsp;*two*":               {"one", "two"},
	} {
		var got []string
		for _, word := range words(text) {
			got = append(got, word.text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
	}
	own := ownWords{"kubelet": false, "add-on": false}
	for name, want := range map[string][]string{
		"RuntimeCalss": {"Runtime", "Calss"}, "OCIRuntime": {"OCI", "Runtime"}, "podCIDRs": {"pod", "CIDR"}, "CPUs": {"CPU"},
		"Kubelets": nil, "add-ons": nil, "kubelet-side": {"side"}, "GB": {"GB"}, "Node": {"Node"},
	} {
		if got := own.unknown(name); !slices.Equal(got, want) {
			t.Errorf("%s consists of %q, want %q", name, got, want)
		}
	}
}

// TestTexts: pages, help texts and examples are read, with the numbers of their lines.
func TestTexts(t *testing.T) {
	page, err := markdown.Parse("docs/x.md", "# One\n\ntwo `a\nb` three\n\n```sh\nfour\n```\nfive\n")
	if err != nil {
		t.Fatal(err)
	}
	root := &cobra.Command{Use: "boat", Short: "A boat", Long: "It sails:\n\n    boat sail\n\nfar."}
	root.Flags().Bool("fast", false, "fast sails")
	root.AddCommand(&cobra.Command{Use: "moor", Short: "Hidden words", Hidden: true})
	texts := append(paragraphs(page), help(root)...)
	for name, data := range map[string]string{
		"a.go":   "package a\n\n// A comment.\nvar b = \"none\"\n",
		"b.yaml": "a: b # why\n#   berth nothing\nsummary: \"Some words\"\nc: d#e\n",
		"c.json": `{"title": "Shown", "panels": [{"description": "text", "expr": "none"}]}`,
	} {
		found, err := example(name, data)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, found...)
	}
	var got []string
	for _, text := range texts {
		for _, word := range words(text.text) {
			got = append(got, text.place(word.line)+": "+word.text)
		}
	}
	slices.Sort(got)
	want := []string{
		"a.go:3: comment", "b.yaml:1: why", "b.yaml:3: Some", "b.yaml:3: words", "c.json: Shown", "c.json: text",
		"docs/x.md:1: One", "docs/x.md:3: two", "docs/x.md:4: three", "docs/x.md:9: five",
		"help of boat --fast: fast", "help of boat --fast: sails", "help of boat moor: Hidden", "help of boat moor: words",
		"help of boat: It", "help of boat: boat", "help of boat: far", "help of boat: sails",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the words differ (-want +got):\n%s", diff)
	}
	if _, err := example("d.txt", ""); err == nil {
		t.Error("a file of an unknown kind is not an error")
	}
}

// TestRun: a misspelled word is a fault with its place, and a machine without hunspell is not silent.
func TestRun(t *testing.T) {
	answers := "@(#) International Ispell\n*\n\n& wrold 2 1: world, wold\n\n# xqzzt 1\n\n"
	got, err := readAnswers([]string{"pod", "wrold", "xqzzt"}, answers)
	if diff := cmp.Diff(map[string][]string{"wrold": {"world", "wold"}, "xqzzt": nil}, got); err != nil || diff != "" {
		t.Errorf("%v: the answers differ (-want +got):\n%s", err, diff)
	}
	if _, err := readAnswers([]string{"pod", "wrold"}, answers); err == nil {
		t.Error("an answer without a word is not an error")
	}

	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	var out bytes.Buffer
	t.Setenv("BERTH_REQUIRE", "root")
	if err := run(t.Context(), root, &out); err != nil || !strings.Contains(out.String(), `skipped: needs ability "spelling"`) {
		t.Errorf("without hunspell: %v, %q", err, out.String())
	}
	t.Setenv("BERTH_REQUIRE", "root,spelling")
	if err := run(t.Context(), root, &out); err == nil || !strings.Contains(err.Error(), `"spelling" is declared by BERTH_REQUIRE but missing`) {
		t.Errorf("without hunspell, which is declared: %v", err)
	}
	t.Setenv("PATH", path)
	misspelled, err := speller(t.Context(), []string{"colour", "wrold", "it's", "Ubuntu", "doesnt"})
	if missing := new(missingError); errors.As(err, &missing) {
		require.Spelling(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(misspelled) != 2 || !slices.Contains(misspelled["wrold"], "world") || misspelled["doesnt"] == nil {
		t.Errorf("misspelled are %q", misspelled)
	}
}
