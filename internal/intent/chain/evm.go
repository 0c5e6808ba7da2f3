package chain

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"golang.org/x/crypto/sha3"
)

var (
	errEVMReference = errors.New("must be evm: and a decimal chain id from 1 to 2^63-1 without a leading zero")
	errEVMAddress   = errors.New("must be 0x and 40 hex digits")
	errEVMChecksum  = errors.New("has a wrong EIP-55 checksum")
	errEVMZero      = errors.New("must not be the zero address")
	errEVMTxHash    = errors.New("must be 0x and 64 hex digits")
)

// evmReference takes the one spelling of a chain id, so that one chain has one
// name.
func evmReference(s string) error {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != s {
		return errEVMReference
	}
	return nil
}

func evmAddress(s string) (string, error) {
	digits, ok := evmHex(s, 40)
	if !ok {
		return "", errEVMAddress
	}
	lower := strings.ToLower(digits)
	if strings.Trim(lower, "0") == "" {
		return "", errEVMZero
	}
	sum := evmChecksum(lower)
	if digits != lower && digits != strings.ToUpper(digits) && digits != sum {
		return "", errEVMChecksum
	}
	return "0x" + sum, nil
}

func evmTxHash(s string) (string, error) {
	digits, ok := evmHex(s, 64)
	if !ok {
		return "", errEVMTxHash
	}
	return "0x" + strings.ToLower(digits), nil
}

// evmHex returns the n hex digits that follow 0x, if s is nothing but that.
func evmHex(s string, n int) (string, bool) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || len(digits) != n {
		return "", false
	}
	_, err := hex.DecodeString(digits)
	return digits, err == nil
}

// evmChecksum spells lower-case digits as EIP-55 says
// (https://eips.ethereum.org/EIPS/eip-55): a letter is a capital where the
// Keccak-256 hash of the digits' ASCII has a nibble of 8 or more at its place.
// Keccak-256 is not SHA3-256: it was fixed before the standard changed the
// padding.
func evmChecksum(lower string) string {
	h := sha3.NewLegacyKeccak256()
	h.Write([]byte(lower))
	sum := hex.EncodeToString(h.Sum(nil))

	out := []byte(lower)
	for i, c := range out {
		if c >= 'a' && sum[i] >= '8' {
			out[i] = c - 'a' + 'A'
		}
	}
	return string(out)
}
