// One clock for all relative times; it stands still while nobody looks.

class Clock {
  now = $state(Date.now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.now = Date.now();
    }, 1000);
  }
}

export const clock = new Clock();
