package pause

import "encoding/binary"

// arm64 returns the program for arm64, which does the same as amd64's. System calls take their
// number in x8 and their parameters in x0 to x3, and return a result or a negative error in x0.
// Numbers are those of Linux (asm-generic/unistd.h).
func arm64() []instruction {
	return []instruction{
		// The set of SIGINT (2), SIGTERM (15) and SIGCHLD (17), on the stack: bits 1, 14 and 16.
		word(0xd2880049, "mov x9, #0x4002"),
		word(0xf2a00029, "movk x9, #0x1, lsl #16"),
		word(0xf81f0fe9, "str x9, [sp,#-16]!"),

		// rt_sigprocmask(SIG_BLOCK, set, no old set, 8 bytes)
		word(0xd28010e8, "mov x8, #0x87"),
		word(0xd2800000, "mov x0, #0x0"),
		word(0x910003e1, "mov x1, sp"),
		word(0xd2800002, "mov x2, #0x0"),
		word(0xd2800103, "mov x3, #0x8"),
		word(0xd4000001, "svc #0x0"),
		word(0x35000200, "cbnz w0, 0x64"), // to "failed"

		// wait (0x28): rt_sigtimedwait(set, no information, no time-out, 8 bytes)
		word(0xd2801128, "mov x8, #0x89"),
		word(0x910003e0, "mov x0, sp"),
		word(0xd2800001, "mov x1, #0x0"),
		word(0xd2800002, "mov x2, #0x0"),
		word(0xd2800103, "mov x3, #0x8"),
		word(0xd4000001, "svc #0x0"),
		word(0x7100441f, "cmp w0, #0x11"), // SIGCHLD
		word(0x54000180, "b.eq 0x74"),     // to "reap"
		word(0x3100101f, "cmn w0, #0x4"),  // EINTR: it was stopped and continued
		word(0x54fffee0, "b.eq 0x28"),     // to "wait"
		word(0xd2800009, "mov x9, #0x0"),  // exit status 0
		word(0x71003c1f, "cmp w0, #0xf"),  // SIGTERM
		word(0x54000080, "b.eq 0x68"),     // to "exit"
		word(0x7100081f, "cmp w0, #0x2"),  // SIGINT
		word(0x54000040, "b.eq 0x68"),     // to "exit"

		// failed (0x64): a call was refused. To go on would use a whole CPU.
		word(0xd2800029, "mov x9, #0x1"),

		// exit (0x68): exit_group(x9)
		word(0xd2800bc8, "mov x8, #0x5e"),
		word(0xaa0903e0, "mov x0, x9"),
		word(0xd4000001, "svc #0x0"),

		// reap (0x74): wait4(any child, no status, WNOHANG, no usage), until it returns no pid
		word(0xd2802088, "mov x8, #0x104"),
		word(0x92800000, "mov x0, #0xffffffffffffffff"),
		word(0xd2800001, "mov x1, #0x0"),
		word(0xd2800022, "mov x2, #0x1"),
		word(0xd2800003, "mov x3, #0x0"),
		word(0xd4000001, "svc #0x0"),
		word(0x7100001f, "cmp w0, #0x0"),
		word(0x54ffff2c, "b.gt 0x74"), // to "reap"
		word(0x17ffffe5, "b 0x28"),    // to "wait"
	}
}

// word is an instruction of arm64: four bytes, little-endian.
func word(code uint32, text string) instruction {
	return instruction{binary.LittleEndian.AppendUint32(nil, code), text}
}
