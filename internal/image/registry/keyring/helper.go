package keyring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

const (
	helperPrefix = "docker-credential-"
	// helperTime bounds a helper: it may ask a service of a cloud.
	helperTime = 15 * time.Second
	// maxAnswer bounds what a helper writes, in bytes. Tokens of clouds have some kilobytes.
	maxAnswer = 1 << 20
)

var helperName = regexp.MustCompile(`^` + helperPrefix + `[A-Za-z0-9][A-Za-z0-9._-]*$`)

// runHelper asks a helper for the credentials of a server. Its output is in no message: it may be a
// secret.
func runHelper(ctx context.Context, helper, server string) (Secret, error) {
	if !helperName.MatchString(helper) {
		return Secret{}, fmt.Errorf("credential helper %q: its name has a character other than letters, digits, dot, dash and underscore: %w", helper, errs.Invalid)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, helper, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // its children, too
	cmd.WaitDelay = time.Second                                                          // a child that has left the group may hold the pipe
	var out bytes.Buffer
	cmd.Stdout = &limited{&out, maxAnswer}
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // it has ended, and a child of it holds the pipe
		_ = cmd.Cancel() // it may have left the group
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return Secret{}, fmt.Errorf("credential helper %s did not answer for %s within %s: %w", helper, server, helperTime, errs.Unavailable)
	case errors.As(err, &exit) && exit.Exited():
		return Secret{}, nil
	case err != nil:
		return Secret{}, fmt.Errorf("cannot run the credential helper %s: %w: %w", helper, err, errs.Unavailable)
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out.Bytes(), &answer) != nil {
		return Secret{}, fmt.Errorf("credential helper %s: its answer for %s is not an object with Username and Secret: %w", helper, server, errs.Invalid)
	}
	if answer.Username == "<token>" { // an identity token
		answer.Username = ""
	}
	return Secret{User: answer.Username, Password: answer.Secret}, nil
}

// limited takes a number of bytes.
type limited struct {
	to   io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, errors.New("the answer is too long")
	}
	l.left -= len(p)
	return l.to.Write(p)
}
