package seccomp

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzSeccompProfile: any profile on the node is refused as a fault of the request, or it is a
// filter that can be encoded.
func FuzzSeccompProfile(f *testing.F) {
	for _, seed := range []string{
		`{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":1,"architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW",` +
			`"args":[{"index":0,"value":1,"valueTwo":2,"op":"SCMP_CMP_MASKED_EQ"}],"includes":{"caps":["CAP_SYS_ADMIN"],"minKernel":"4.8"},"excludes":{"arches":["s390"]}}]}`,
		`{"defaultAction":"SCMP_ACT_ALLOW","archMap":[{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_X86"]}],"syscalls":[{"name":"mkdir","action":"SCMP_ACT_LOG"}]}`,
		`{"defaultAction":"SCMP_ACT_NOTIFY","listenerPath":"/x","listenerMetadata":"y","flags":["SECCOMP_FILTER_FLAG_LOG"]}`,
		`{"defaultAction":"nonsense","architectures":["z80"],"syscalls":[null,{"names":["a"],"args":[null,{"op":"?"}]}]}`, `null`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		profile, err := parse(data, []string{"CAP_CHOWN"})
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		if profile == nil {
			t.Fatalf("%s became no filter", data)
		}
		again, err := json.Marshal(profile)
		if err != nil {
			t.Fatalf("%s became what cannot be written: %v", data, err)
		}
		if err := json.Unmarshal(again, &specs.LinuxSeccomp{}); err != nil {
			t.Errorf("%s became %s: %v", data, again, err)
		}
	})
}
