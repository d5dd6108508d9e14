package show

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0B", 999: "999B", 1000: "1kB", 1536: "1.54kB", 12_345_678: "12.3MB", 999_999: "1MB", 5_000_000_000: "5GB",
	} {
		if got := Size(bytes); got != want {
			t.Errorf("%d is %s, want %s", bytes, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 90 * time.Second: "90s", 3 * time.Minute: "3m", 5 * time.Hour: "5h", 72 * time.Hour: "3d",
	} {
		if got := Age(d); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
}

func TestFormats(t *testing.T) {
	msg := &runtimeapi.PodSandbox{Id: "abc", State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	for format, want := range map[string]string{
		"json": `"state": "SANDBOX_NOTREADY"`, "yaml": "state: SANDBOX_NOTREADY",
	} {
		var out strings.Builder
		if err := Value(&out, msg, format); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is %s", format, out.String())
		}
	}
	var f Flag
	if err := f.format.Set("xml"); err == nil || !strings.Contains(err.Error(), "json and yaml") {
		t.Errorf("got %v", err)
	}
}

// TestMessageHasZeroFields: the zero values of CRI are those that programs look for most.
func TestMessageHasZeroFields(t *testing.T) {
	for want, msg := range map[string]proto.Message{
		`"state":"SANDBOX_READY"`: &runtimeapi.PodSandbox{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		`"exitCode":0`:            &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_EXITED},
		`"containers":[]`:         &runtimeapi.ListContainersResponse{},
	} {
		got, err := Message(msg)
		if err != nil {
			t.Fatal(err)
		}
		var compact bytes.Buffer // protojson puts spaces at random
		if err := json.Compact(&compact, got); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(compact.String(), want) {
			t.Errorf("%s lacks %s", compact.String(), want)
		}
	}
}

func TestInfoTakesJSONAsSuch(t *testing.T) {
	var out strings.Builder
	if err := Value(&out, Info(map[string]string{"a": `{"b":1}`, "c": "plain text"}), "yaml"); err != nil {
		t.Fatal(err)
	}
	if out.String() != "a:\n  b: 1\nc: plain text\n" {
		t.Errorf("got %q", out.String())
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	if err := Table(&out, []string{"NAME", "AGE"}, [][]string{{"a-long-name", "1s"}, {"b", "-"}}); err != nil {
		t.Fatal(err)
	}
	if want := "NAME          AGE\na-long-name   1s\nb             -\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}
