package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	yamlnodes "go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/cli/podyaml"
	clusterfile "github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/test/docs/markdown"
)

const root = "../.."

func pages(t *testing.T) []markdown.Page {
	t.Helper()
	pages, err := markdown.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestBlocks: each code block names its language, and is right in it: commands of berth are in its
// command tree, files of berth are read by its own readers.
func TestBlocks(t *testing.T) {
	blocks, lines := 0, 0
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			blocks++
			n, err := checkBlock(t.TempDir(), block)
			lines += n
			if err != nil {
				t.Errorf("%s: %v", block.Place(), err)
			}
		}
	}
	if blocks < 60 || lines < 60 {
		t.Errorf("found %d blocks and %d command lines: does the test read the pages?", blocks, lines)
	}
}

// TestCommandsInProse: commands in prose exist, with their flags.
func TestCommandsInProse(t *testing.T) {
	plain := regexp.MustCompile(`^berth( [A-Za-z0-9_./:@=,-]+)+$`)
	found := 0
	for _, page := range pages(t) {
		for _, span := range page.Spans() {
			if !plain.MatchString(span.Text) || strings.Contains(span.Text, "...") || history(page.Name) {
				continue
			}
			found++
			if err := checkCommand(strings.Fields(span.Text), false); err != nil {
				t.Errorf("%s:%d: `%s`: %v", page.Name, span.Number, span.Text, err)
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands: does the test read the pages?", found)
	}
}

// history reports whether a page is about former releases, too, whose commands may be gone.
func history(page string) bool { return page == "docs/release-notes.md" }

// checkBlock checks one block, and counts the command lines of berth in it.
func checkBlock(dir string, block markdown.Block) (int, error) {
	switch block.Lang() {
	case "sh", "bash":
		return checkScript(block.Text)
	case "console":
		var script strings.Builder
		for line := range strings.Lines(block.Text) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				script.WriteString(command)
			}
		}
		return checkScript(script.String())
	case "yaml":
		return 0, checkYAML(block.Text, block.Info[1:])
	case "toml":
		return 0, checkTOML(dir, block.Text)
	case "json":
		if !json.Valid([]byte(block.Text)) {
			return 0, errors.New("not JSON")
		}
		return 0, nil
	case "go":
		_, err := format.Source([]byte(block.Text))
		return 0, err
	case "ini":
		return 0, checkINI(block.Text)
	case "text":
		return 0, nil
	case "":
		return 0, errors.New("the code block names no language: ```sh for commands, ```console for commands with their output, ```yaml, ```toml, ```json, ```ini, ```go, or ```text")
	}
	return 0, fmt.Errorf("no check for the language %q: add one to checkBlock", block.Lang())
}

// checkTOML reads a file of berth's daemon, or one that a comment in its first line names otherwise.
func checkTOML(dir, text string) error {
	first, _, _ := strings.Cut(text, "\n")
	if name, ok := strings.CutPrefix(first, "# /"); ok && !strings.HasPrefix(name, "etc/berth/berth.toml") {
		return toml.Unmarshal([]byte(text), &map[string]any{})
	}
	file := filepath.Join(dir, "berth.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	_, err := config.LoadDaemon(file, nil)
	return err
}

// checkYAML reads the documents of a block. words follow the language: "output" is of a command,
// "kubernetes" are objects for an API server alone, "node" and "cluster" are a part of such a file,
// and a third word is the list that the part is of.
func checkYAML(text string, words []string) error {
	// Digests and digests' beginnings stand for whole ones.
	text = strings.ReplaceAll(text, "sha256:…", "sha256:"+strings.Repeat("a", 64))
	if len(words) > 0 {
		switch words[0] {
		case "output":
			return parsed(text)
		case "kubernetes":
			return checkObjects(text, false)
		case "node":
			return checkNode(words[1:], text)
		case "cluster":
			_, err := clusterfile.Load("block", []byte("apiVersion: berth.run/v1alpha1\nkind: Cluster\n"+text), clusterfile.Options{})
			return err
		}
		return fmt.Errorf("%q follows the language: want output, kubernetes, node or cluster", words[0])
	}
	return checkObjects(text, true)
}

// checkObjects reads documents with a kind. With run, berth pod run must take the pods among them.
func checkObjects(text string, run bool) error {
	var failed []error
	var pods bytes.Buffer
	for _, document := range regexp.MustCompile(`(?m)^---\s*\n`).Split(text, -1) {
		var meta struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			return err
		}
		switch {
		case meta.APIVersion == nodefile.APIVersion && meta.Kind == "Node":
			_, err := nodefile.Load("block", []byte(document))
			failed = append(failed, err)
		case meta.APIVersion == clusterfile.APIVersion, meta.APIVersion == clusterfile.KindAPIVersion:
			_, err := clusterfile.Load("block", []byte(document), clusterfile.Options{})
			failed = append(failed, err)
		case meta.Kind == "":
			failed = append(failed, errors.New("the document has no kind: write ```yaml node, ```yaml cluster or ```yaml output for a part of a file"))
		default:
			failed = append(failed, checkObject(document))
			pods.WriteString("---\n" + document)
		}
	}
	if run {
		failed = append(failed, checkPods(pods.Bytes()))
	}
	return errors.Join(failed...)
}

// checkNode reads a part of a node file.
func checkNode(below []string, text string) error {
	head := "apiVersion: berth.run/v1alpha1\nkind: Node\n"
	switch {
	case len(below) > 0 && below[0] == "runtime.assets":
		head += "runtime:\n  name: containerd\n  assets:\n"
	case !strings.Contains("\n"+text, "\nruntime:"):
		head += "runtime: {name: berth}\n"
	}
	_, err := nodefile.Load("block", []byte(head+text))
	return err
}

// objects are the kinds of Kubernetes' own objects that the pages show.
func objects() map[string]any {
	return map[string]any{
		"v1 ConfigMap": &corev1.ConfigMap{}, "v1 Secret": &corev1.Secret{}, "v1 Service": &corev1.Service{},
		"v1 Pod": &corev1.Pod{}, "v1 PersistentVolumeClaim": &corev1.PersistentVolumeClaim{},
		"v1 PersistentVolume": &corev1.PersistentVolume{}, "v1 Namespace": &corev1.Namespace{},
		"apps/v1 Deployment": &appsv1.Deployment{}, "apps/v1 DaemonSet": &appsv1.DaemonSet{},
		"apps/v1 StatefulSet": &appsv1.StatefulSet{}, "batch/v1 Job": &batchv1.Job{},
		"networking.k8s.io/v1 NetworkPolicy": &networkingv1.NetworkPolicy{}, "node.k8s.io/v1 RuntimeClass": &nodev1.RuntimeClass{},
	}
}

// checkObject decodes an object of Kubernetes strictly.
func checkObject(document string) error {
	var meta struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
		return err
	}
	object := objects()[meta.APIVersion+" "+meta.Kind]
	if object == nil {
		return fmt.Errorf("there is no check for %s of %s: add it to objects", meta.Kind, meta.APIVersion)
	}
	return yaml.UnmarshalStrict([]byte(document), object)
}

// checkPods reads objects as berth pod run does, if there is something that it runs.
func checkPods(documents []byte) error {
	if !regexp.MustCompile(`(?m)^kind: (Pod|Deployment|StatefulSet|DaemonSet|Job)$`).Match(documents) {
		return nil
	}
	_, err := podyaml.Parse(documents)
	return err
}

// parsed reads YAML of any content.
func parsed(text string) error {
	decoder := yamlnodes.NewDecoder(strings.NewReader(text))
	for {
		var value any
		if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// checkINI reads a unit of systemd.
func checkINI(text string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' && line[0] != ';' && !strings.Contains(line, "=") && !(line[0] == '[' && strings.HasSuffix(line, "]")) {
			return fmt.Errorf("%q is no section, setting or comment", line)
		}
	}
	return nil
}

// TestLinks: each link leads to a file of the repository, and its anchor to a heading there.
func TestLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	all := pages(t)
	for _, page := range all {
		anchors[page.Name] = map[string]bool{}
		for _, heading := range page.Headings() {
			anchors[page.Name][heading.Anchor] = true
		}
	}
	links := 0
	for _, page := range all {
		for _, link := range page.Links() {
			if strings.Contains(link.Text, "://") || strings.HasPrefix(link.Text, "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(link.Text, "#")
			target := page.Name
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(page.Name), file))
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s:%d: the link %s leads nowhere", page.Name, link.Number, link.Text)
			} else if anchor != "" && !anchors[target][anchor] {
				t.Errorf("%s:%d: %s has no heading for #%s", page.Name, link.Number, target, anchor)
			}
		}
	}
	if links < 100 {
		t.Errorf("found %d links: does the test read the pages?", links)
	}
}
