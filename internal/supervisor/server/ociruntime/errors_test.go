package ociruntime

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestStartFault(t *testing.T) {
	const start = "unable to start container process: error during container init: "
	for text, program := range map[string]bool{
		start + `exec: "nope": executable file not found in $PATH`:             true,
		start + `exec: "/etc/passwd": permission denied`:                       true,
		start + "mkdir /etc/passwd: not a directory":                           true,
		start + `chdir to cwd ("/secret") set in config.json failed: denied`:   true,
		start + `error mounting "/x" to rootfs at "/y": mkdir /y: read-only`:   false,
		"unable to set memory limit to 4096 (current usage: 9, peak usage: 9)": false,
	} {
		err := startFault(errors.New(text))
		var fault *ProgramError
		if errors.As(err, &fault) != program || err.Error() != text || errors.Is(err, errs.Invalid) != program {
			t.Errorf("%s: %#v", text, err)
		}
	}
	if err := startFault(nil); err != nil {
		t.Error(err)
	}
}
