"""Plans of few messages that all devices send alike, changed at random: ways past devices, trees and paths."""
