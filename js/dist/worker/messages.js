export const LEVELS = ["debug", "info", "warning", "error"];
export class Outbox {
    #post;
    #messages = [];
    constructor(post) {
        this.#post = post;
    }
    add(message) {
        if (this.#messages.push(message) === 1)
            queueMicrotask(() => this.flush());
    }
    flush() {
        if (this.#messages.length === 0)
            return;
        const messages = this.#messages;
        this.#messages = [];
        this.#post(messages);
    }
}
