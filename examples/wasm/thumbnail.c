/* Scale a gray image down. stdin: {"width": 4, "height": 4, "pixels": "<base64, a byte per pixel>", "factor": 2}
 * stdout: {"width": 2, "height": 2, "pixels": "<base64>"}. Each new pixel is the mean of factor × factor old ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rowlock.h"

#define MOST (1 << 20)

static char input[MOST];
static unsigned char image[MOST];

static _Noreturn void refuse(const char *why) { rowlock_fail(why, strlen(why)); }

/* Return what stands behind "name": in the input. The payload is flat, and its only text is base64. */
static const char *field(const char *name) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *found = strstr(input, quoted);
    if (found == NULL) refuse("a field is missing: width, height, pixels and factor are needed");
    return found + strlen(quoted);
}

static int number(const char *name) {
    int value = atoi(field(name));
    if (value < 1 || value > 4096) refuse("width, height and factor must be from 1 to 4096");
    return value;
}

static int digit(char letter) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = letter == 0 ? NULL : strchr(digits, letter);
    return found == NULL ? -1 : (int)(found - digits);
}

static size_t decode(const char *text) {
    size_t size = 0;
    unsigned bits = 0, held = 0;
    for (; digit(*text) >= 0 && size < MOST; text++) {
        bits = bits << 6 | (unsigned)digit(*text);
        held += 6;
        if (held >= 8) image[size++] = bits >> (held -= 8) & 0xFF;
    }
    return size;
}

static void print_base64(const unsigned char *data, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < size; at += 3) {
        size_t left = size - at;
        unsigned bits = data[at] << 16 | (left > 1 ? data[at + 1] << 8 : 0) | (left > 2 ? data[at + 2] : 0);
        putchar(digits[bits >> 18 & 63]);
        putchar(digits[bits >> 12 & 63]);
        putchar(left > 1 ? digits[bits >> 6 & 63] : '=');
        putchar(left > 2 ? digits[bits & 63] : '=');
    }
}

int main(void) {
    input[fread(input, 1, MOST - 1, stdin)] = 0;
    int width = number("width"), height = number("height"), factor = number("factor");
    const char *pixels = field("pixels");
    if (*pixels++ != '"' || decode(pixels) != (size_t)width * (size_t)height) refuse("pixels: must be width × height bytes");
    int across = width / factor, down = height / factor;
    if (across == 0 || down == 0) refuse("factor: nothing would be left of the image");
    for (int y = 0; y < down; y++) {
        for (int x = 0; x < across; x++) {
            unsigned long sum = 0;
            for (int dy = 0; dy < factor; dy++)
                for (int dx = 0; dx < factor; dx++) sum += image[(y * factor + dy) * width + x * factor + dx];
            image[y * across + x] = sum / (unsigned long)(factor * factor); /* behind what is still to be read */
        }
        rowlock_progress(100.0 * (y + 1) / down, "scaling", 7);
    }
    fprintf(stderr, "scaled %d x %d to %d x %d\n", width, height, across, down);
    printf("{\"width\": %d, \"height\": %d, \"pixels\": \"", across, down);
    print_base64(image, (size_t)across * (size_t)down);
    printf("\"}");
    return 0;
}
