package store

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func wireConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web", Attempt: 3},
		Command:  []string{"sh", "-c", "echo '<a>' && echo \u2028 > /x"},
		Envs:     []*runtimeapi.KeyValue{{Key: "A", Value: []byte{0, 255}}},
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}
}

// message is a record that is a message.
type message = Message[*runtimeapi.ContainerConfig]

func written(t *testing.T, config *runtimeapi.ContainerConfig) []byte {
	t.Helper()
	data, err := json.Marshal(MessageOf(config))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readBack(t *testing.T, data []byte) *runtimeapi.ContainerConfig {
	t.Helper()
	var back message
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return back.Get()
}

// A message is read from its binary form, whatever its text has.
func TestMessagesAreReadFromTheirBinaryForm(t *testing.T) {
	for name, config := range map[string]*runtimeapi.ContainerConfig{"full": wireConfig(), "empty": {}} {
		data := written(t, config)
		if !fromWire(data, &runtimeapi.ContainerConfig{}) {
			t.Errorf("%s: there is no binary form that fits its text: %s", name, data)
		}
		if back := readBack(t, data); !proto.Equal(back, config) {
			t.Errorf("%s: read %v", name, back)
		}
	}
}

// An older berth reads the text and ignores the binary form; a record of an older berth has none.
func TestMessagesAreReadByAndFromOlderVersions(t *testing.T) {
	config := wireConfig()
	older := &runtimeapi.ContainerConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(written(t, config), older); err != nil || !proto.Equal(older, config) {
		t.Errorf("an older berth reads %v, %v", older, err)
	}
	text, err := protojson.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if back := readBack(t, text); !proto.Equal(back, config) {
		t.Errorf("of an older berth: %v", back)
	}
}

// The text counts when somebody has changed it, or the binary form is damaged.
func TestTheTextOfAMessageCounts(t *testing.T) {
	data := written(t, wireConfig())
	changed := readBack(t, bytes.Replace(data, []byte(`"web"`), []byte(`"new"`), 1))
	if changed.GetMetadata().GetName() != "new" {
		t.Errorf("with another name in its text: %v", changed)
	}
	start := len(wireStart)
	for name, damaged := range map[string]string{
		"other bytes": string(data[:start]) + "AAAA" + string(data[start+4:]),
		"cut":         string(data[:start]) + "AA" + string(data[bytes.IndexByte(data[start:], wireEnd)+start:]),
		"no base64":   string(data[:start]) + "??" + string(data[start+2:]),
		"empty":       strings.Replace(string(data), string(data[start:bytes.IndexByte(data[start:], wireEnd)+start]), "", 1),
	} {
		if back := readBack(t, []byte(damaged)); !proto.Equal(back, wireConfig()) {
			t.Errorf("%s: read %v", name, back)
		}
	}
}

// A map of a record may have the key of a binary form: any client may set an annotation.
func TestMapThatLooksLikeABinaryForm(t *testing.T) {
	type record struct{ Annotations map[string]string }
	form := append(make([]byte, headSize), "AAAA"...)
	putHead(form, nil)
	want := record{Annotations: map[string]string{"@wire": string(form), "z": "1"}}
	options := Options[record]{Path: t.TempDir()}
	d, _, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create("a", &want); err != nil {
		t.Fatal(err)
	}
	again, bad, err := Open(options)
	if err != nil || len(bad) > 0 {
		t.Fatalf("%v %v", bad, err)
	}
	if got, err := again.Get("a"); err != nil || !maps.Equal(got.Annotations, want.Annotations) {
		t.Errorf("read %v, %v", got, err)
	}
}
