package shimoptions

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
)

// The options are those of containerd's own messages.
func TestEncode(t *testing.T) {
	runc := Of("/opt/containerd-shim-runc-v2")
	data, err := runc.Encode([]string{"BinaryName=/usr/bin/crun", "NoPivotRoot=false", "NoNewKeyring=true", "IoUid=70000", "ShimCgroup=/shims"}, Values{"/root", true, 5, 6})
	got := &options.Options{}
	if err == nil {
		err = proto.Unmarshal(data, got)
	}
	want := &options.Options{BinaryName: "/usr/bin/crun", NoNewKeyring: true, IoUid: 70000, IoGid: 6, ShimCgroup: "/shims", Root: "/root", SystemdCgroup: true}
	if err != nil || !proto.Equal(got, want) || runc.URL != string(proto.MessageName(want)) {
		t.Errorf("runc's options: %v %v, want %v", got, err, want)
	}

	other := Of("/opt/containerd-shim-runsc-v1")
	data, err = other.Encode([]string{"TypeUrl=io.containerd.runsc.v1.options", "ConfigPath=/etc/runsc.toml"}, Values{"/root", true, 5, 6})
	generic := &runtimeoptions.Options{}
	if err == nil {
		err = proto.Unmarshal(data, generic)
	}
	wantGeneric := &runtimeoptions.Options{TypeUrl: "io.containerd.runsc.v1.options", ConfigPath: "/etc/runsc.toml"}
	if err != nil || !proto.Equal(generic, wantGeneric) || other.URL != string(proto.MessageName(wantGeneric)) {
		t.Errorf("options of another shim: %v %v, want %v", generic, err, wantGeneric)
	}
}

// Every option of the messages has a name here, but for those that berth sets and those of containerd's own use.
func TestNoOptionIsMissing(t *testing.T) {
	for _, tc := range []struct {
		of      Type
		message proto.Message
	}{{runc(), &options.Options{}}, {generic(), &runtimeoptions.Options{}}} {
		fields := tc.message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			name := ""
			for part := range strings.SplitSeq(string(f.Name()), "_") {
				name += strings.ToUpper(part[:1]) + part[1:]
			}
			known, ok := tc.of.fields[name]
			switch {
			case ok && known.number != int(f.Number()):
				t.Errorf("%s has the number %d, want %d", name, known.number, f.Number())
			case !ok && tc.of.root != int(f.Number()) && tc.of.systemd != int(f.Number()) && !strings.HasPrefix(name, "TaskApi"):
				t.Errorf("%s is missing", name)
			}
		}
	}
}

func TestFaults(t *testing.T) {
	for option, want := range map[string]string{
		"x":                `"x": want Name=value`,
		"x=1":              "x: no such option; there are BinaryName, CriuImagePath, ",
		"Root=/r":          "Root: berth sets it",
		"NoPivotRoot=yes":  `NoPivotRoot: "yes": want true or false`,
		"IoUid=-1":         `IoUid: "-1": want a number`,
		"IoUid=4294967296": `IoUid: "4294967296": want a number`,
	} {
		if got := runc().Check([]string{option}); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", option, got, want)
		}
	}
	if _, err := runc().Encode([]string{"x"}, Values{}); err == nil {
		t.Error("a fault was encoded")
	}
}

func TestProgram(t *testing.T) {
	for name, want := range map[string]string{
		"io.containerd.runc.v2": "containerd-shim-runc-v2", "io.containerd.kata.v2": "containerd-shim-kata-v2",
		"runc": "", "runc.v2": "", "/usr/bin/x.y.z": "", "io..v2": "", "": "",
	} {
		if got := Program(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
